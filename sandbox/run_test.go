package sandbox_test

import (
	"testing"

	"starling/testenv"
)

func TestProbe(t *testing.T) {
	e := newEngine(t)
	for _, n := range []string{"noop", "trap", "recursion", "memhog", "memgrow", "memmax", "tablehog", "bigtable", "bigmemory", "bigstart", "start", "nostart", "badstart", "badimport", "badfunction", "badtype", "badmemory", "exit126", "signals"} {
		end, rec := run(t, e, spec(t, testenv.WAT(t, n)))
		t.Logf("%s: %+v %+v", n, end, rec.all())
	}
	s := spec(t, testenv.WAT(t, "spin"))
	s.Limits.DeadlineSeconds = 1
	end, _ := run(t, e, s)
	t.Logf("%+v", end)
	s = spec(t, testenv.WAT(t, "sleep1h"))
	s.Limits.DeadlineSeconds = 1
	end, _ = run(t, e, s)
	t.Logf("%+v", end)
}
