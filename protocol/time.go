package protocol

import (
	"encoding/json"
	"fmt"
	"time"
)

// timeLayout is RFC 3339 in UTC with milliseconds, always three digits.
const timeLayout = "2006-01-02T15:04:05.000Z"

// Time is an instant as the wire writes it: RFC 3339, UTC, milliseconds. The
// zero value is left out of objects that allow it (omitzero).
type Time struct{ t time.Time }

// NewTime is t cut to milliseconds.
func NewTime(t time.Time) Time { return Time{t.UTC().Truncate(time.Millisecond)} }

// Std is the instant as a time.Time.
func (t Time) Std() time.Time { return t.t }

// IsZero reports whether no time was set.
func (t Time) IsZero() bool { return t.t.IsZero() }

// set is t as a time that somebody gave. The zero value's instant would read as no
// time at all, so it becomes the next millisecond, which is as long past.
func (t Time) set() Time {
	if t.IsZero() {
		return NewTime(t.t.Add(time.Millisecond))
	}
	return t
}

// String is the form on the wire.
func (t Time) String() string { return t.t.UTC().Format(timeLayout) }

// MarshalJSON writes the form on the wire.
func (t Time) MarshalJSON() ([]byte, error) { return json.Marshal(t.String()) }

// UnmarshalJSON reads any RFC 3339 time; null is the zero value.
func (t *Time) UnmarshalJSON(data []byte) error {
	var s *string
	if err := json.Unmarshal(data, &s); err != nil {
		return jsonError(err)
	}
	if s == nil {
		*t = Time{}
		return nil
	}
	parsed, err := time.Parse(time.RFC3339Nano, *s)
	// Near the edge the zone may carry it to a year that RFC 3339 cannot write.
	if year := parsed.UTC().Year(); err != nil || year < 0 || year > 9999 {
		return fmt.Errorf("%q is no RFC 3339 time", clip(*s, 64))
	}
	*t = NewTime(parsed)
	return nil
}
