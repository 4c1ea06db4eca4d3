package completion

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"starling/protocol"
)

// Write puts the outcome into completion.json in dir, mode 0600. The file is
// written beside its place and renamed, so a reader sees all of the old one or
// all of the new one; the temporary file is removed when that fails. dir is not
// trusted: a link in it is never followed out of it.
//
// Source: docs/protocol.md, section 8.
func Write(dir *os.Root, o protocol.Outcome) error {
	content, err := o.File()
	if err != nil {
		return err
	}
	temp := "." + protocol.CompletionFile + "." + protocol.NewTempName() + ".tmp"
	if err := replace(dir, temp, content); err != nil {
		return fmt.Errorf("write %s in %s: %w", protocol.CompletionFile, dir.Name(), err)
	}
	return nil
}

func replace(dir *os.Root, temp string, content []byte) error {
	f, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = dir.Rename(temp, protocol.CompletionFile)
	}
	if errors.Is(err, os.ErrExist) {
		// A directory, which only a guest puts there. It is not removed: following
		// it down may take more descriptors, and more time, than there are.
		old := strings.TrimSuffix(temp, ".tmp") + ".old"
		if err = dir.Rename(protocol.CompletionFile, old); err == nil {
			err = dir.Rename(temp, protocol.CompletionFile)
		}
	}
	if err != nil {
		return errors.Join(err, dir.Remove(temp))
	}
	return nil
}
