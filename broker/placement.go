package broker

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// placing is [notPlaced] for the tries of one request. A lack of servers is logged at the
// first: the next tries wait for those of a cluster that just starts.
func (b *Bus) placing(what string, c jetstream.StreamConfig) func(error) error {
	told := false
	return func(err error) error {
		err = notPlaced(what, c, err)
		if errors.Is(err, ErrUnavailable) && !told {
			told = true
			b.log.Warn("stream not placed: waiting for servers that may be starting", "stream", c.Name,
				"wait", adminWithin.String(), "error", err)
		}
		return err
	}
}

// notPlaced names the stream, its limit or its replicas and the fix, where that is what
// err is about.
func notPlaced(what string, c jetstream.StreamConfig, err error) error {
	var api jetstream.JetStreamError
	if !errors.As(err, &api) || api.APIError() == nil {
		return err
	}
	switch e := api.APIError(); {
	case e.ErrorCode == codeNoStorage, e.ErrorCode == codeNoMemory, e.ErrorCode == codeAccountLimit,
		e.ErrorCode == codeNoPeers && strings.Contains(e.Description, "insufficient storage"):
		limit, fix := "no limit of its own", ""
		if c.MaxBytes > 0 {
			limit = fmt.Sprintf("%d bytes reserved for it", c.MaxBytes)
		}
		if flag := limitOf(c.Name).flag; flag != "" {
			fix = ", or ask for less with " + flag
		}
		store := "store (max_file_store, or the account's disk limit)"
		if c.Storage == jetstream.MemoryStorage {
			store = "memory (max_memory_store, or the account's memory limit)"
		}
		return fmt.Errorf("%w: %s stream %s, %d replicas, with %s: %s (%d): give the servers a larger %s%s",
			ErrRefused, what, c.Name, max(c.Replicas, 1), limit, e.Description, e.ErrorCode, store, fix)
	case e.ErrorCode == codeNoPeers:
		return fmt.Errorf("%w: %s stream %s: %s (%d): %d replicas need as many servers with JetStream that are up: bring them up, or ask for fewer with --replicas",
			ErrUnavailable, what, c.Name, e.Description, e.ErrorCode, c.Replicas)
	case e.ErrorCode == codeReplicasAlone:
		return fmt.Errorf("%w: %s stream %s: this server is in no cluster, where there can be one replica: leave --replicas out, or join it to others (%d)",
			ErrRefused, what, c.Name, e.ErrorCode)
	}
	return err
}
