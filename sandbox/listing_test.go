package sandbox

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestThePaddingOfAListingIsCleared, and nothing else, wherever the listing is cut off.
func TestThePaddingOfAListingIsCleared(t *testing.T) {
	t.Parallel()
	var dirty, clean []byte
	for _, name := range []string{"a", "", "longer"} {
		entry := bytes.Repeat([]byte{0xff}, direntBytes)
		binary.LittleEndian.PutUint32(entry[direntNameLen:], uint32(len(name)))
		dirty = append(append(dirty, entry...), name...)
		clear(entry[direntPadding:])
		clean = append(append(clean, entry...), name...)
	}
	for n := range len(dirty) + 1 {
		list := bytes.Clone(dirty)
		clearPadding(list[:n])
		if !bytes.Equal(list[:n], clean[:n]) || !bytes.Equal(list[n:], dirty[n:]) {
			t.Errorf("the first %d bytes cleared are %x, want %x and then what was there", n, list, clean[:n])
		}
	}
}
