package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"starling/sandbox"
	"starling/testenv"
)

// compilerOf is the process that compiles a module and has begun to read it, 0 when
// there is none.
func compilerOf(t *testing.T, module string) int {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list) // a thread may end
		for child := range strings.FieldsSeq(string(text)) {
			files, _ := filepath.Glob(fmt.Sprintf("/proc/%s/fd/*", child))
			for _, file := range files {
				if name, err := os.Readlink(file); err != nil || name != module {
					continue
				}
				info, err := os.ReadFile(strings.Replace(file, "/fd/", "/fdinfo/", 1))
				if err != nil || strings.HasPrefix(string(info), "pos:\t0\n") {
					continue
				}
				pid, err := strconv.Atoi(child)
				if err != nil {
					t.Fatal(err)
				}
				return pid
			}
		}
	}
	return 0
}

// TestACompilationOnABusyHost: a compiler that the host gives no processor is not its
// module's fault; one that got it later is judged as any other.
func TestACompilationOnABusyHost(t *testing.T) {
	t.Parallel()
	for name, goesOn := range map[string]bool{"to the end": false, "for a while": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.CacheDir, c.CompileTimeout = t.TempDir(), 2*time.Second })
			if goesOn {
				s.BusyHost(100) // the machine that runs the tests may be one
			}
			bomb := spec(t, testenv.CompileBomb(t, 800, 400))
			done := make(chan error, 1)
			go func() { done <- s.Prepare(t.Context(), bomb.Module, bomb.Digest) }()
			pid := 0
			testenv.EventuallyTrue(t, soon, "a compiler", func() bool { pid = compilerOf(t, bomb.Module); return pid != 0 })
			testenv.Freeze(t, pid)
			frozen := time.Now()
			if goesOn {
				testenv.EventuallyTrue(t, soon, "the time limit passes", func() bool {
					select {
					case err := <-done:
						t.Fatalf("Prepare = %v after %s, while its compiler stood still", err, time.Since(frozen))
					default:
					}
					return time.Since(frozen) > 3*time.Second
				})
				signal(t, pid, syscall.SIGCONT)
			}
			err := <-done
			if refused := errors.Is(err, sandbox.ErrRefused); err == nil || refused != goesOn {
				t.Errorf("Prepare = %v, want a refusal: %t", err, goesOn)
			}
			if !goesOn && !strings.Contains(err.Error(), "too little processor time: it was not done in 20s") {
				t.Errorf("Prepare = %v", err)
			}
		})
	}
}
