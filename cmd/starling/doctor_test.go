package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// diagnosis is what doctor --json prints.
type diagnosis struct {
	Status verdict
	Checks []check
}

// of are the checks of a name that are not ok, as text.
func (d diagnosis) of(name string) string {
	var found []string
	for _, c := range d.Checks {
		if c.Check == name && c.Status != fine {
			found = append(found, fmt.Sprintf("%s: %s -> %s", c.Status, c.Text, c.Fix))
		}
	}
	return strings.Join(found, "\n")
}

// doctor runs the command and holds its status to what it says.
func doctor(t *testing.T, args ...string) diagnosis {
	t.Helper()
	got := starling(t, "", append([]string{"doctor", "--json"}, args...)...)
	d := decoded[diagnosis](t, got.out)
	want := exitOK
	if d.Status == problem {
		want = exitFailure
	}
	if got.status != want {
		t.Errorf("doctor = %d, want %d for %s\n%s", got.status, want, d.Status, got.out)
	}
	return d
}

func TestDoctorFindsAFleetFine(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	url := f.server.ClientURL()
	if d := doctor(t, "--url", url); d.Status != fine {
		t.Errorf("doctor of a new fleet = %+v, want all ok", d)
	}
	got := starling(t, "", "doctor", "--url", url)
	if got.status != exitOK {
		t.Errorf("doctor = %d, want 0", got.status)
	}
	contains(t, "doctor", got.out, "ok ", "server", "jetstream", "rights", "operator", "streams", "clock", "room", "pools", "delegations", "dead letters", "ok: ")
}

func TestDoctorAtThreeServers(t *testing.T) {
	t.Parallel()
	c := testenv.Cluster(t)
	bus, err := broker.Connect(t.Context(), broker.Config{URL: c.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := bus.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := bus.Init(t.Context(), broker.InitConfig{Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() error { // replicas that just began are behind
		d := doctor(t, "--url", c.URL())
		if d.Status == problem || d.of("streams") != "" || d.of("servers") != "" {
			return fmt.Errorf("doctor = %+v, want no problem", d)
		}
		return nil
	})
	c.Stop(2)
	testenv.Eventually(t, 40*time.Second, func() error {
		said := doctor(t, "--url", c.URL()).of("servers")
		if strings.Count(said, "\n") > 0 || !strings.Contains(said, "server testenv-2 is offline") || !strings.Contains(said, "STARLING_JOBS") {
			return fmt.Errorf("servers = %q, want one line that names the server and what lacks it", said)
		}
		return nil
	})
	// Without a quorum nothing answers: doctor says so and ends.
	c.Stop(1)
	testenv.Eventually(t, 2*time.Minute, func() error { // a leader learns it after a while
		if d := doctor(t, "--url", c.Servers[0].URL()); d.Status != problem || !strings.Contains(d.of("streams"), "unavailable") {
			return fmt.Errorf("doctor = %+v, want a problem: no stream has a leader", d)
		}
		return nil
	})
}

func TestDoctorSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	t.Run("no server", func(t *testing.T) {
		t.Parallel()
		d := doctor(t, "--url", "nats://127.0.0.1:1")
		contains(t, "bus", d.of("bus"), "problem", "no NATS server", "--url")
	})
	t.Run("no JetStream", func(t *testing.T) {
		t.Parallel()
		d := doctor(t, "--url", testenv.NATS(t, testenv.WithoutJetStream()).URL())
		contains(t, "bus", d.of("bus"), "problem", "JetStream is off", "-js")
	})
	t.Run("not initialized", func(t *testing.T) {
		t.Parallel()
		d := doctor(t, "--url", testenv.NATS(t).URL())
		contains(t, "streams", d.of("streams"), "problem", "namespace starling is not initialized", "-> starling init, with")
	})
	t.Run("another namespace", func(t *testing.T) {
		t.Parallel()
		url := testenv.NATS(t).URL()
		d := doctor(t, "--url", url, "--namespace", "blue")
		contains(t, "streams", d.of("streams"), "namespace blue is not initialized", "-> starling init --namespace blue, with")
		operator{t, url}.must("init", "--namespace", "blue", "--pools", "gpu")
		d = doctor(t, "--url", url, "--namespace", "blue")
		contains(t, "pools", d.of("pools"), "-> starling worker --pool gpu --namespace blue")
	})
	t.Run("bad credentials", func(t *testing.T) {
		t.Parallel()
		d := doctor(t, "--url", testenv.NATS(t, testenv.WithUsers(testenv.OperatorUser())).URL())
		contains(t, "bus", d.of("bus"), "problem", "refused the credentials", "--creds")
	})
	t.Run("narrow rights", func(t *testing.T) {
		t.Parallel()
		asks := testenv.WorkerUser(protocol.DefaultNamespace, "wrk_1", protocol.DefaultPool)
		asks.Publish = append(asks.Publish, "$SYS.REQ.USER.INFO")
		mute := testenv.ParentUser(protocol.DefaultNamespace, "ses_1")
		poor := testenv.ObserverUser(protocol.DefaultNamespace, "ses_1", "tsk_1")
		poor.Publish = []string{"$SYS.REQ.USER.INFO", "$JS.API.STREAM.INFO.STARLING_TASKS"}
		s := testenv.NATS(t, testenv.WithUsers(testenv.OperatorUser(), asks, mute, poor))
		for _, c := range []struct {
			user testenv.User
			says string
		}{
			{asks, ""}, {mute, "$SYS.REQ.USER.INFO"}, {poor, "CONSUMER"},
		} {
			d := doctor(t, "--url", s.URLFor(c.user), "--inbox-prefix", c.user.InboxPrefix())
			if d.Status != warning {
				t.Errorf("doctor as %s = %+v, want warnings", c.user.Name, d)
			}
			contains(t, "streams", d.of("streams"), "may not look", "operator")
			contains(t, "skipped", d.of("skipped"), "pools", "delegations", "dead letters")
			if got := d.of("rights"); (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
				t.Errorf("rights of %s = %q, want %q", c.user.Name, got, c.says)
			}
			if c.says == "" && !strings.Contains(fmt.Sprint(d), "has what a worker of pool default needs") {
				t.Errorf("doctor as a worker = %+v, want that it may work", d)
			}
		}
	})
}

// TestRightsOfTheDocsAreWhatTheDoctorJudges: the table of testenv is that of the
// docs.
func TestRightsOfTheDocsAreWhatTheDoctorJudges(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	ns := protocol.DefaultNamespace
	for _, c := range []struct {
		user testenv.User
		role broker.RoleRights
	}{
		{testenv.WorkerUser(ns, "wrk_1", "default"), f.bus.WorkerRights("default")},
		{testenv.ParentUser(ns, "ses_1"), f.bus.ParentRights()},
		{testenv.ObserverUser(ns, "ses_1", "tsk_1"), f.bus.ObserverRights()},
	} {
		rights := broker.UserRights{
			Publish: broker.SubjectRights{Allow: c.user.Publish}, Subscribe: broker.SubjectRights{Allow: c.user.Subscribe},
		}
		if lacks := rights.Lacks(c.role); len(lacks) > 0 {
			t.Errorf("a %s of the docs lacks %v", c.role.Role, lacks)
		}
		if len(c.role.Publish) != len(c.user.Publish) {
			t.Errorf("a %s needs %d subjects to publish, the docs give %d", c.role.Role, len(c.role.Publish), len(c.user.Publish))
		}
		for i := range c.user.Publish { // each is needed
			fewer := rights
			fewer.Publish.Allow = append(append([]string{}, c.user.Publish[:i]...), c.user.Publish[i+1:]...)
			if len(fewer.Lacks(c.role)) == 0 {
				t.Errorf("a %s without %s lacks nothing", c.role.Role, c.user.Publish[i])
			}
		}
		denied := rights
		denied.Publish.Deny = []string{">"}
		if len(denied.Lacks(c.role)) != len(c.role.Publish) {
			t.Errorf("a %s that is denied everything lacks %v", c.role.Role, denied.Lacks(c.role))
		}
	}
}

// TestDoctorNamesWhatDiffersAndWhatIsStuck in a fleet that somebody laid hands on.
func TestDoctorNamesWhatDiffersAndWhatIsStuck(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("init", "--pools", "gpu,idle")
	o.must("capsule", "push", hello(t))
	js := testenv.JetStream(t, o.url)
	// A delegation whose job somebody removed; one whose worker is gone with its
	// job; one whose parent was not told; a dead letter; an unreadable record.
	old := protocol.NewTime(time.Now().Add(-time.Hour))
	record := func(change func(*protocol.Record)) protocol.Record {
		rec := buried(t, "").NewRecord(old.Std())
		change(&rec)
		if _, err := f.bus.CreateRecord(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
		return rec
	}
	vanished := record(func(*protocol.Record) {})
	orphaned := record(func(r *protocol.Record) {
		r.Status, r.Attempt, r.WorkerID, r.SessionID = protocol.StatusWorking, 1, "wrk_gone", "ses_gone"
	})
	held := record(func(r *protocol.Record) {
		r.Status, r.Attempt, r.WorkerID, r.SessionID = protocol.StatusWorking, 1, f.staff.worker.ID(), "ses_held"
	})
	untold := record(func(r *protocol.Record) {
		r.Status = protocol.StatusOK
		r.Outcome = &protocol.Outcome{DelegationID: r.DelegationID, Status: protocol.StatusOK, DeliveryError: "failed to connect"}
		r.Ending = &protocol.Ending{State: "TASK_STATE_COMPLETED", Message: "session ended"}
	})
	if _, err := js.Publish(t.Context(), "$KV.starling-delegations.ses_x.dlg_1", []byte("{")); err != nil {
		t.Fatal(err)
	}
	bury(t, o, buried(t, ""), nil)
	waiting := strings.TrimSpace(o.must("dispatch", "hello@1.0.0", "--task", "x", "--pool", "gpu", "--allow-unserved"))
	// Clocks: a worker's entry from the future.
	ahead := func() protocol.WorkerInfo {
		return protocol.WorkerInfo{WorkerID: "wrk_ahead", Pool: "nowhere", Host: "h", SeenAt: protocol.NewTime(time.Now().Add(time.Minute))}
	}
	putWorker(t, js, ahead())
	// Topology: a consumer is gone, a stream differs in what init puts right.
	if err := js.DeleteConsumer(t.Context(), "STARLING_JOBS", "idle-peer"); err != nil {
		t.Fatal(err)
	}
	change(t, js, "OBJ_starling-results", func(c *jetstream.StreamConfig) { c.MaxConsumers = -1; c.AllowDirect = false })

	d := doctor(t, "--url", o.url)
	if d.Status != problem {
		t.Errorf("doctor = %s, want a problem", d.Status)
	}
	contains(t, "streams", d.of("streams"), "consumer idle-peer of STARLING_JOBS is missing", "starling init",
		"OBJ_starling-results has direct gets false, not true")
	contains(t, "pools", d.of("pools"), "problem: gpu: nobody takes its jobs, and 1 are queued -> starling worker --pool gpu",
		"worker wrk_ahead works for pool nowhere, which is not declared -> starling init --pools nowhere")
	contains(t, "clock", d.of("clock"), "problem", "wrk_ahead")
	stuck := d.of("delegations")
	contains(t, "delegations", stuck, "1 submitted without a job", vanished.Key(), "1 working without a worker", orphaned.Key(),
		"1 ended, and the parent was not told", untold.Key(), "starling redeliver", "1 records cannot be read")
	if strings.Contains(stuck, held.Key()) || strings.Contains(stuck, waiting) {
		t.Errorf("doctor calls stuck what is not:\n%s", stuck)
	}
	contains(t, "dead letters", d.of("dead letters"), "1, 1 no-record", "starling dlq ls")
	contains(t, "ps goes on after what it cannot read", o.do("ps").err, "ses_x.dlg_1")
}

func putWorker(t *testing.T, js jetstream.JetStream, info protocol.WorkerInfo) {
	t.Helper()
	body := fmt.Sprintf(`{"worker_id":%q,"pool":%q,"host":%q,"seen_at":%q}`, info.WorkerID, info.Pool, info.Host, info.SeenAt.Std().UTC().Format("2006-01-02T15:04:05.000Z"))
	if _, err := js.Publish(t.Context(), "$KV.starling-workers."+string(info.WorkerID), []byte(body)); err != nil {
		t.Fatal(err)
	}
}

func change(t *testing.T, js jetstream.JetStream, stream string, f func(*jetstream.StreamConfig)) {
	t.Helper()
	s, err := js.Stream(context.WithoutCancel(t.Context()), stream)
	if err != nil {
		t.Fatal(err)
	}
	config := s.CachedInfo().Config
	f(&config)
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

// TestDoctorSeesAFullStore at its warning and its problem.
func TestDoctorSeesAFullStore(t *testing.T) {
	t.Parallel()
	f := testFleet(t, func(c *fleetConfig) { c.init.MaxJobs = 5 })
	o := operator{t, f.server.ClientURL()}
	o.must("init", "--pools", "gpu")
	o.must("capsule", "push", hello(t))
	for i, want := range []verdict{fine, fine, fine, warning, problem} {
		o.must("dispatch", "hello@1.0.0", "--task", "x", "--pool", "gpu", "--allow-unserved")
		got := doctor(t, "--url", o.url).of("room")
		if (want == fine) != (got == "") || !strings.HasPrefix(got, strings.TrimSuffix(string(want), "ok")) {
			t.Errorf("with %d of 5 jobs room = %q, want %s", i+1, got, want)
		}
	}
}

// TestDoctorSeesALimitThatNothingFits, such as another program set.
func TestDoctorSeesALimitThatNothingFits(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	js := testenv.JetStream(t, o.url)
	change(t, js, "STARLING_TASKS", func(c *jetstream.StreamConfig) { c.MaxBytes = 525_311 })
	change(t, js, "KV_starling-delegations", func(c *jetstream.StreamConfig) { c.MaxBytes = 66_560 }) // as much as it needs
	contains(t, "room", doctor(t, "--url", o.url).of("room"),
		"problem: stream STARLING_TASKS may hold 525311 bytes, and one largest frame can need 525312 -> starling init --max-frame-bytes 525312, or more")
	o.must("init", "--max-frame-bytes", "none")
	if got := doctor(t, "--url", o.url).of("room"); got != "" {
		t.Errorf("room = %q, want nothing", got)
	}
}

// TestWorkersThatCannotBeReadAreNamed once, by doctor with what to do, and by stats.
func TestWorkersThatCannotBeReadAreNamed(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	js := testenv.JetStream(t, o.url)
	workers, err := js.KeyValue(t.Context(), "starling-workers")
	if err != nil {
		t.Fatal(err)
	}
	write := func(key, value string) {
		t.Helper()
		if _, err := workers.Put(t.Context(), key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	write("wrk_odd", "{")
	got := doctor(t, "--url", o.url).of("workers")
	contains(t, "workers", got, "warning: 1 entries of the registry cannot be read: wrk_odd (", "JSON", "`nats kv del starling-workers KEY` removes one", "30 s")
	if n := strings.Count(o.do("stats").err, "wrk_odd"); n != 1 {
		t.Errorf("stats names it %d times, want once", n)
	}
	for n := range maxNamed {
		write(fmt.Sprintf("wrk_odd%d%s", n, strings.Repeat("x", 200)), `{"worker_id":"w","slots":-1}`)
	}
	got = doctor(t, "--url", o.url).of("workers")
	contains(t, "workers", got, fmt.Sprintf("%d entries", maxNamed+1), "slots -1", "…", "1 more")
	if strings.Contains(got, "\n") || strings.Contains(got, strings.Repeat("x", maxKey)) {
		t.Errorf("workers = %q, want one bounded line", got)
	}
}
