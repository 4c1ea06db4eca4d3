package broker

import (
	"errors"
	"fmt"
	"strings"

	"starling/protocol"
)

// limit is a setting of init that bounds the bytes of a stream.
type limit struct {
	suffix   string // of the stream's name
	field    string // of InitConfig
	flag     string
	messages string // the flag of what bounds the stream's messages, "" without one
	value    int64  // as it is asked for
	optional bool   // there may be none
	least    int64  // with less, what may be stored does not fit an empty stream
	largest  string // what takes that much
}

// storedExtra is more than a stored message takes beside its headers and its body: the
// subject and some numbers.
const storedExtra = 1 << 10

// limits are those of section 2, with what c asks for.
func (c InitConfig) limits() []limit {
	return []limit{
		{
			suffix: "_JOBS", field: "MaxJobBytes", flag: "--max-job-bytes", messages: "--max-jobs", value: c.MaxJobBytes,
			least: maxJobMsgBytes + storedExtra, largest: "one largest job",
		},
		{
			suffix: "_TASKS", field: "MaxFrameBytes", flag: "--max-frame-bytes", value: c.MaxFrameBytes, optional: true,
			least: protocol.MaxFrameBytes + storedExtra, largest: "one largest frame",
		},
		{
			suffix: "-delegations", field: "MaxLedgerBytes", flag: "--max-ledger-bytes", value: c.MaxLedgerBytes, optional: true,
			least: maxRecordBytes + storedExtra, largest: "one largest record",
		},
		{
			suffix: "-results", field: "MaxResultBytes", flag: "--max-result-bytes", value: c.MaxResultBytes, optional: true,
			least:   protocol.MaxOutputBytes + protocol.MaxOutputBytes/chunkBytes*storedExtra,
			largest: "one result of all the output that is kept",
		},
	}
}

// limitOf is the setting that bounds a stream's bytes; one without has a zero one.
func limitOf(stream string) limit {
	for _, l := range (InitConfig{}).limits() {
		if strings.HasSuffix(stream, l.suffix) {
			return l
		}
	}
	return limit{}
}

// full says of a stream at its limit what is wrong and, where init has a setting for
// it, what raises it.
func (b *Bus) full(stream string, err error) string {
	text := fmt.Sprintf("stream %s: %v", stream, err)
	l := limitOf(stream)
	flag, unit := l.flag, "bytes"
	if errors.Is(err, errAtCount) {
		flag, unit = l.messages, "messages"
	}
	if flag != "" {
		text += fmt.Sprintf(": `%s` raises its limit, with more %s", b.Command("init "+flag+" N"), unit)
	}
	return text
}
