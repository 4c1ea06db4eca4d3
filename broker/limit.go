package broker

import (
	"fmt"
	"strings"

	"starling/protocol"
)

// limit is a setting of init that bounds the bytes of a stream.
type limit struct {
	suffix      string // of the stream's name
	field, flag string
	value       int64  // as it is asked for
	least       int64  // with less, what may be stored does not fit an empty stream
	largest     string // what takes that much
	optional    bool   // there may be none
	messages    string // what bounds the stream's messages, "" without one
}

// storedExtra is more than a stored message takes beside its headers and its body: the
// subject and some numbers.
const storedExtra = 1 << 10

// limits are those of section 2, with what c asks for.
func (c InitConfig) limits() []limit {
	return []limit{
		{"_JOBS", "MaxJobBytes", "--max-job-bytes", c.MaxJobBytes, maxJobMsgBytes + storedExtra, "one largest job", false, "--max-jobs"},
		{"_TASKS", "MaxFrameBytes", "--max-frame-bytes", c.MaxFrameBytes, protocol.MaxFrameBytes + storedExtra, "one largest frame", true, ""},
		{"-delegations", "MaxLedgerBytes", "--max-ledger-bytes", c.MaxLedgerBytes, maxRecordBytes + storedExtra, "one largest record", true, ""},
		{
			"-results", "MaxResultBytes", "--max-result-bytes", c.MaxResultBytes,
			protocol.MaxOutputBytes + protocol.MaxOutputBytes/chunkBytes*storedExtra, "one result of all the output that is kept", true, "",
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
	if flag := limitOf(stream).flag; flag != "" {
		text += fmt.Sprintf(": `%s` raises its limit, with more bytes", b.Command("init "+flag))
	}
	return text
}
