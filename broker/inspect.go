package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

// Difference is a part of the topology that is not as [Bus.Init] would make it.
// Init puts right what has no Setting that it refuses: see Fixable.
type Difference struct {
	Thing   string // the stream, or the stream and its consumer
	Setting string // "" when the whole thing is missing
	Have    string
	Want    string
	Fixable bool // by running init (again)
}

// StreamState is what a stream of the namespace holds.
type StreamState struct {
	Name     string
	Messages uint64
	Bytes    uint64
	MaxMsgs  int64 // -1: no limit
	MaxBytes int64 // -1: no limit
	// LimitFlag and MessagesFlag are the settings of init that bound the bytes and the
	// messages, "" without one. LeastBytes is what the largest message may take, by the
	// name of Largest; 0 and "" without a LimitFlag.
	LimitFlag, MessagesFlag string
	LeastBytes              int64
	Largest                 string

	Replicas int
	Offline  []string // servers whose replicas are not there
	Behind   []string // servers whose replicas are there, and not current
}

// Inspection is the topology as it stands.
type Inspection struct {
	Streams     []StreamState
	Differences []Difference
	Pools       []string
	ServerTime  time.Time     // zero: unknown
	Clock       time.Duration // of the server, ahead of this host's; right to ±Precision
	Precision   time.Duration
}

// Inspect compares what exists with what init would make of the same pools. It
// changes nothing. It needs the right to ask for every stream; a stream that may
// not be asked for is [ErrDenied].
func (b *Bus) Inspect(ctx context.Context) (Inspection, error) {
	var in Inspection
	jobs, err := b.streamInfo(ctx, b.ns.JobsStream())
	if err != nil && !errors.Is(err, ErrNotInitialized) {
		return in, err
	}
	if err == nil {
		in.Pools = b.poolsOf(jobs.Config.Subjects)
	}
	wanted := b.streams(InitConfig{Pools: in.Pools})
	replicas := map[int]int{}
	for _, w := range wanted {
		began := time.Now()
		info, err := b.streamInfo(ctx, w.config.Name)
		if errors.Is(err, ErrNotInitialized) {
			in.Differences = append(in.Differences, Difference{Thing: "stream " + w.config.Name, Have: "missing", Want: "there", Fixable: true})
			continue
		}
		if err != nil {
			return in, err
		}
		if took := time.Since(began); !info.TimeStamp.IsZero() && (in.ServerTime.IsZero() || took/2 < in.Precision) {
			in.ServerTime, in.Precision = info.TimeStamp, took/2
			in.Clock = info.TimeStamp.Sub(began.Add(took / 2))
		}
		for _, d := range b.streamDifferences(info.Config, w.config) {
			in.Differences = append(in.Differences, Difference{Thing: "stream " + d.Stream, Setting: d.Setting, Have: d.Have, Want: d.Want})
		}
		if info.Config.MaxConsumers <= 0 {
			in.Differences = append(in.Differences, Difference{
				Thing: "stream " + w.config.Name, Setting: "max consumers", Have: fmt.Sprint(info.Config.MaxConsumers),
				Want: fmt.Sprint(w.config.MaxConsumers), Fixable: true,
			})
		}
		replicas[info.Config.Replicas]++
		in.Streams = append(in.Streams, streamState(info))
	}
	in.Differences = append(in.Differences, unequal(in.Streams, replicas)...)
	for _, pool := range in.Pools {
		for _, lane := range protocol.Lanes() {
			more, err := b.inspectConsumer(ctx, pool, lane)
			if err != nil {
				return in, err
			}
			in.Differences = append(in.Differences, more...)
		}
	}
	return in, nil
}

func streamState(info *jetstream.StreamInfo) StreamState {
	limit := limitOf(info.Config.Name)
	s := StreamState{
		LimitFlag: limit.flag, MessagesFlag: limit.messages, LeastBytes: limit.least, Largest: limit.largest,
		Name: info.Config.Name, Messages: info.State.Msgs, Bytes: info.State.Bytes,
		MaxMsgs: info.Config.MaxMsgs, MaxBytes: info.Config.MaxBytes, Replicas: info.Config.Replicas,
	}
	if info.Cluster != nil {
		for _, peer := range info.Cluster.Replicas {
			if peer.Offline {
				s.Offline = append(s.Offline, peer.Name)
			} else if !peer.Current {
				s.Behind = append(s.Behind, peer.Name)
			}
		}
	}
	return s
}

// unequal are the streams with fewer replicas than the most of them have.
func unequal(streams []StreamState, count map[int]int) []Difference {
	most := 0
	for n := range count {
		most = max(most, n)
	}
	var found []Difference
	for _, s := range streams {
		if s.Replicas < most {
			found = append(found, Difference{
				Thing: "stream " + s.Name, Setting: "replicas", Have: fmt.Sprint(s.Replicas), Want: fmt.Sprint(most), Fixable: true,
			})
		}
	}
	return found
}

func (b *Bus) inspectConsumer(ctx context.Context, pool string, lane protocol.Lane) ([]Difference, error) {
	name := protocol.LaneConsumer(pool, lane)
	thing := "consumer " + name + " of " + b.ns.JobsStream()
	info, err := b.consumerInfo(ctx, name)
	if errors.Is(err, ErrNotInitialized) {
		return []Difference{{Thing: thing, Have: "missing", Want: "there", Fixable: true}}, nil
	}
	if err != nil {
		return nil, err
	}
	var found []Difference
	for _, d := range b.consumerDifferences(info.Config, name, b.ns.LaneJobs(pool, lane)) {
		found = append(found, Difference{Thing: thing, Setting: d.Setting, Have: d.Have, Want: d.Want})
	}
	for _, least := range []struct {
		setting    string
		have, want int
	}{{"max ack pending", info.Config.MaxAckPending, maxAckPending}, {"max waiting", info.Config.MaxWaiting, maxWaiting}} {
		if least.have < least.want {
			found = append(found, Difference{Thing: thing, Setting: least.setting, Have: fmt.Sprint(least.have), Want: fmt.Sprint(least.want), Fixable: true})
		}
	}
	return found, nil
}

// Account is what the account may store, and stores.
type Account struct {
	Store, MaxStore   int64 // bytes on disk; -1: no limit of the account's
	Memory, MaxMemory int64
	Streams           int
	MaxStreams        int // -1: no limit
}

// Account reads the account's limits and usage. Errors: [ErrNoJetStream],
// [ErrDenied], [ErrUnavailable].
func (b *Bus) Account(ctx context.Context) (Account, error) {
	var account Account
	err := b.settled(ctx, func(ctx context.Context) error {
		ctx, done := b.guard(ctx, "$JS.API.INFO")
		defer done()
		info, err := b.js.AccountInfo(ctx)
		if errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
			return fmt.Errorf("%w: for this account: enable it in the server's configuration", ErrNoJetStream)
		}
		if err != nil {
			return b.failure(ctx, "$JS.API.INFO", err)
		}
		limits := info.Limits
		for _, tier := range info.Tiers { // a tiered account has its limits there
			limits.MaxStore, limits.MaxMemory = max(limits.MaxStore, tier.Limits.MaxStore), max(limits.MaxMemory, tier.Limits.MaxMemory)
		}
		account = Account{
			Store: int64(info.Store), MaxStore: limits.MaxStore, Memory: int64(info.Memory), MaxMemory: limits.MaxMemory,
			Streams: info.Streams, MaxStreams: limits.MaxStreams,
		}
		return nil
	})
	return account, err
}

// Server says which server this connection is to, without credentials.
func (b *Bus) Server() (name, url, version string) {
	return b.nc.ConnectedServerName(), b.nc.ConnectedUrlRedacted(), b.nc.ConnectedServerVersion()
}

// UserRights are the connected user's.
type UserRights struct {
	User               string
	Publish, Subscribe SubjectRights
}

// SubjectRights allow what Allow covers and Deny does not; without Allow it is
// everything.
type SubjectRights struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

// UserRights asks the server what the connected user may do. A user with narrow
// rights needs that to $SYS.REQ.USER.INFO for it, else it is [ErrDenied].
func (b *Bus) UserRights(ctx context.Context) (UserRights, error) {
	m, err := b.request(ctx, b.nc, &nats.Msg{Subject: "$SYS.REQ.USER.INFO"})
	if errors.Is(err, errNoResponders) {
		return UserRights{}, fmt.Errorf("%w: the server has no system account to ask", ErrUnavailable)
	}
	if err != nil {
		return UserRights{}, err
	}
	var answer struct {
		Data struct {
			User        string `json:"user"`
			Permissions *struct {
				Publish   *SubjectRights `json:"publish"`
				Subscribe *SubjectRights `json:"subscribe"`
			} `json:"permissions"`
		} `json:"data"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return UserRights{}, fmt.Errorf("%w: its answer is not JSON: %v", ErrRefused, err)
	}
	rights := UserRights{User: answer.Data.User}
	if p := answer.Data.Permissions; p != nil {
		if p.Publish != nil {
			rights.Publish = *p.Publish
		}
		if p.Subscribe != nil {
			rights.Subscribe = *p.Subscribe
		}
	}
	return rights, nil
}

// Lacks are the subjects of a role that these rights do not cover, as "publish …"
// and "subscribe …".
func (r UserRights) Lacks(role RoleRights) []string {
	var lacking []string
	for _, side := range []struct {
		verb  string
		have  SubjectRights
		needs []string
	}{{"publish", r.Publish, role.Publish}, {"subscribe", r.Subscribe, role.Subscribe}} {
		for _, subject := range side.needs {
			covered := func(pattern string) bool { return covers(pattern, subject) }
			if len(side.have.Allow) > 0 && !slices.ContainsFunc(side.have.Allow, covered) || slices.ContainsFunc(side.have.Deny, covered) {
				lacking = append(lacking, side.verb+" "+subject)
			}
		}
	}
	return lacking
}
