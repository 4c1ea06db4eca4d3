// Package floor does by hand what a job costs at the least: the same bus
// operations, the same files and a bare instantiation, with the clients alone
// and no line of the product. `starling bench` and the benchmarks run it beside
// the product in one run, so that only their ratio counts.
//
// It is the one place above package broker and package sandbox that speaks NATS
// and wasm, for that is its subject.
package floor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bytecodealliance/wasmtime-go/v39"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Config is one floor.
type Config struct {
	URL    string // of a server with JetStream
	Slots  int    // jobs at a time
	Dir    string // of the work directories
	Module []byte // a WASI command that does nothing
	Door   string // URL that is told of each end; empty: nobody
	Files  bool   // write the work directory's files
}

// Floor is a worker by hand. It is used by one caller at a time.
type Floor struct {
	cfg    Config
	nc     *nats.Conn
	frames *nats.Conn
	js     jetstream.JetStream
	framed jetstream.JetStream
	kv     jetstream.KeyValue
	engine *wasmtime.Engine
	module *wasmtime.Module
	linker *wasmtime.Linker

	client *http.Client
	stop   context.CancelFunc
	done   chan struct{}
}

const (
	namespace = "floor"
	record    = `{"delegation_id":"%s","task_id":"%s","context_id":"%s","capsule":{"name":"noop","version":"1.0.0","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},"pool":"default","lane":"user","origin":"user","trust":"trusted","spawner":{"session_id":"%[4]s","context_id":"%[3]s"},"status":"%[5]s","attempt":1,"returned":0,"worker_id":"wrk_0192f0c0aabb7ccd8eeff00112233445","session_id":"ses_0192f0c0aabb7ccd8eeff00112233445","workdir":"/var/lib/starling/jobs/ses_0192f0c0aabb7ccd8eeff00112233445/work","delivery":{"sequence":12,"count":1},"submitted_at":"2026-11-29T12:00:00.000Z"%s}`
	outcome   = `,"outcome":{"delegation_id":"%s","capsule_name":"noop","capsule_version":"1.0.0","session_id":"ses_0192f0c0aabb7ccd8eeff00112233445","status":"ok","result_path":"out/result.txt","workdir":"/var/lib/starling/jobs/ses_0192f0c0aabb7ccd8eeff00112233445/work","duration_ms":1,"reported_by":"child","delivered":false,"worker_id":"wrk_0192f0c0aabb7ccd8eeff00112233445"},"ending":{"state":"TASK_STATE_COMPLETED","message":"session ended"}`
	frame     = `{"statusUpdate":{"taskId":"%s","contextId":"%s","status":{"state":"TASK_STATE_WORKING","timestamp":"2026-11-29T12:00:00.000Z","message":{"messageId":"%[1]s.1.1","role":"ROLE_AGENT","taskId":"%[1]s","contextId":"%[2]s","parts":[{"text":"session ended"}]}},"metadata":{"urn:starling:a2a:stream:v1":{"kind":"status-update"}}}}`
	body      = `{"delegation_id":"%s","task_id":"%s","capsule":{"name":"noop","version":"1.0.0","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},"message":{"messageId":"msg_0192f0c0aabb7ccd8eeff00112233445","contextId":"%s","role":"ROLE_USER","parts":[{"text":"nothing"}]},"spawner":{"session_id":"%s","context_id":"%[3]s","delegation_id":"%[1]s"},"origin":"user","pool":"default","max_attempts":3}`
	post      = `{"jsonrpc":"2.0","id":"req_%s","method":"message/send","params":{"message":{"kind":"message","messageId":"msg_%[1]s","contextId":"ctx","role":"user","parts":[{"kind":"text","text":"Delegated capsule finished."}]},"configuration":{"blocking":false}}}`
)

// Start makes the streams and begins to take jobs.
func Start(ctx context.Context, cfg Config) (_ *Floor, err error) {
	f := &Floor{
		cfg: cfg, done: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: cfg.Slots}},
	}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if f.nc, err = nats.Connect(cfg.URL); err != nil {
		return nil, err
	}
	if f.frames, err = nats.Connect(cfg.URL); err != nil {
		return nil, err
	}
	if f.js, err = jetstream.New(f.nc); err != nil {
		return nil, err
	}
	if f.framed, err = jetstream.New(f.frames); err != nil {
		return nil, err
	}
	consumer, err := f.topology(ctx)
	if err != nil {
		return nil, err
	}
	engineConfig := wasmtime.NewConfig()
	engineConfig.SetEpochInterruption(true)
	f.engine = wasmtime.NewEngineWithConfig(engineConfig)
	if f.module, err = wasmtime.NewModule(f.engine, cfg.Module); err != nil {
		return nil, err
	}
	f.linker = wasmtime.NewLinker(f.engine)
	if err = f.linker.DefineWasi(); err != nil {
		return nil, err
	}
	taking, stop := context.WithCancel(context.WithoutCancel(ctx))
	f.stop = stop
	go func() {
		defer close(f.done)
		f.take(taking, consumer)
	}()
	return f, nil
}

// Close stops taking, waits for the jobs under way and disconnects.
func (f *Floor) Close() {
	f.stop()
	<-f.done
	f.close()
}

func (f *Floor) close() {
	f.client.CloseIdleConnections()
	for _, nc := range []*nats.Conn{f.nc, f.frames} {
		if nc != nil {
			nc.Close()
		}
	}
}

// Tasks is the subject of all frames; the last of a task has the header
// Floor-End.
func Tasks() string { return namespace + ".tasks.*" }

func (f *Floor) topology(ctx context.Context) (jetstream.Consumer, error) {
	jobs, err := f.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: "FLOOR_JOBS", Subjects: []string{namespace + ".jobs.>"}, Retention: jetstream.WorkQueuePolicy,
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgs: 1_000_000,
	})
	if err != nil {
		return nil, err
	}
	if _, err := f.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: "FLOOR_TASKS", Subjects: []string{namespace + ".tasks.*"}, AllowDirect: true, Duplicates: 30 * time.Second,
	}); err != nil {
		return nil, err
	}
	if _, err := f.nc.QueueSubscribe(namespace+".pools.default", "workers", func(m *nats.Msg) { _ = m.Respond(nil) }); err != nil {
		return nil, err
	}
	if f.kv, err = f.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: "floor-delegations", RePublish: &jetstream.RePublish{Source: "$KV.floor-delegations.>", Destination: "floor.delegations.>"},
	}); err != nil {
		return nil, err
	}
	return jobs.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "default", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxAckPending: 100_000,
	})
}

// Dispatch asks the pool, creates a record and publishes a job, and gives the task's subject.
func (f *Floor) Dispatch(ctx context.Context) (string, error) {
	id := func() string { u := uuid.Must(uuid.NewV7()); return strings.ReplaceAll(u.String(), "-", "") }
	task, delegation, session, contextID := "tsk_"+id(), "dlg_"+id(), "ses_"+id(), "ctx_"+id()
	key := session + "." + delegation
	if _, err := f.nc.RequestWithContext(ctx, namespace+".pools.default", nil); err != nil {
		return "", err
	}
	rec := fmt.Sprintf(record, delegation, task, contextID, session, "submitted", "")
	revision, err := f.kv.Create(ctx, key, []byte(rec))
	if err != nil {
		return "", err
	}
	m := nats.NewMsg(namespace + ".jobs.default.user." + task)
	m.Header.Set("Key", key)
	m.Header.Set("Revision", strconv.FormatUint(revision, 10))
	m.Header.Set("Nats-Expected-Last-Subject-Sequence", "0")
	m.Data = fmt.Appendf(nil, body, delegation, task, contextID, session)
	_, err = f.js.PublishMsg(ctx, m)
	return namespace + ".tasks." + task, err
}

func (f *Floor) take(ctx context.Context, consumer jetstream.Consumer) {
	slots := make(chan struct{}, f.cfg.Slots)
	var jobs sync.WaitGroup
	defer jobs.Wait()
	for ctx.Err() == nil {
		slots <- struct{}{}
		free := 1 + f.cfg.Slots - len(slots)
		batch, err := consumer.Fetch(free, jetstream.FetchMaxWait(time.Second))
		<-slots
		if err != nil {
			return
		}
		for m := range batch.Messages() {
			slots <- struct{}{}
			jobs.Go(func() {
				defer func() { <-slots }()
				if err := f.job(context.WithoutCancel(ctx), m); err != nil {
					panic(fmt.Sprintf("floor: %v", err)) // a floor that fails measures nothing
				}
			})
		}
	}
}

// job is the life of one, in one function so that its steps can be counted.
func (f *Floor) job(ctx context.Context, m jetstream.Msg) error {
	var job struct {
		TaskID       string `json:"task_id"`
		DelegationID string `json:"delegation_id"`
		Message      struct{ ContextID string }
		Spawner      struct {
			SessionID string `json:"session_id"`
		}
	}
	if err := json.Unmarshal(m.Data(), &job); err != nil {
		return err
	}
	key := job.Spawner.SessionID + "." + job.DelegationID
	cancel, err := f.nc.Subscribe(namespace+".cancel."+key, func(*nats.Msg) {})
	if err != nil {
		return err
	}
	defer func() { _ = cancel.Unsubscribe() }()
	entry, err := f.kv.Get(ctx, key)
	if err != nil {
		return err
	}
	write := func(status, more string, at uint64) (uint64, error) {
		rec := fmt.Sprintf(record, job.DelegationID, job.TaskID, job.Message.ContextID, job.Spawner.SessionID, status, more)
		return f.kv.Update(ctx, key, []byte(rec), at)
	}
	revision, err := write("working", "", entry.Revision())
	if err != nil {
		return err
	}
	dir := filepath.Join(f.cfg.Dir, job.TaskID)
	if f.cfg.Files {
		if err := startFiles(dir); err != nil {
			return err
		}
	}
	if err := f.guest(dir); err != nil {
		return err
	}
	if f.cfg.Files {
		if err := os.Mkdir(filepath.Join(dir, "work", "out"), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "work", "out", "result.txt"), nil, 0o600); err != nil {
			return err
		}
	}
	ack, err := f.framed.PublishMsgAsync(f.frame(job.TaskID, job.Message.ContextID, job.TaskID+".1.1"))
	if err != nil {
		return err
	}
	var last uint64
	select {
	case stored := <-ack.Ok():
		last = stored.Sequence
	case err := <-ack.Err():
		return err
	}
	if revision, err = write("ok", fmt.Sprintf(outcome, job.DelegationID), revision); err != nil {
		return err
	}
	if err := f.completion(dir, job.DelegationID); err != nil {
		return err
	}
	end := f.frame(job.TaskID, job.Message.ContextID, job.TaskID+".end")
	end.Header.Set("Floor-End", "1")
	end.Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(last, 10))
	if _, err := f.js.PublishMsg(ctx, end); err != nil {
		return err
	}
	if f.cfg.Door != "" {
		if err := f.tell(job.DelegationID); err != nil {
			return err
		}
		if _, err := write("ok", fmt.Sprintf(outcome, job.DelegationID), revision); err != nil {
			return err
		}
		if err := f.completion(dir, job.DelegationID); err != nil {
			return err
		}
	}
	return m.DoubleAck(ctx)
}

func (f *Floor) frame(task, contextID, id string) *nats.Msg {
	m := nats.NewMsg(namespace + ".tasks." + task)
	m.Header = nats.Header{
		"Nats-Msg-Id": {id}, "Starling-Frame": {"status-update"}, "Starling-Attempt": {"1"}, "Starling-Seq": {"1"},
		"Starling-Session": {"ses_0192f0c0aabb7ccd8eeff00112233445"}, "A2A-Version": {"1.0"},
	}
	m.Data = fmt.Appendf(nil, frame, task, contextID)
	return m
}

func startFiles(dir string) error {
	return errors.Join(
		os.Mkdir(dir, 0o700), os.Mkdir(filepath.Join(dir, "work"), 0o700),
		os.WriteFile(filepath.Join(dir, "work", "task.md"), []byte("nothing"), 0o600),
		os.WriteFile(filepath.Join(dir, "trace.jsonl"), []byte(`{"type":"session_start"}`+"\n"), 0o600),
	)
}

func (f *Floor) completion(dir, delegation string) error {
	if !f.cfg.Files {
		return nil
	}
	temp := filepath.Join(dir, "work", ".completion.json.tmp")
	if err := os.WriteFile(temp, fmt.Appendf(nil, outcome, delegation), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(dir, "work", "completion.json"))
}

func (f *Floor) tell(delegation string) error {
	resp, err := f.client.Post(f.cfg.Door, "application/json", strings.NewReader(fmt.Sprintf(post, delegation)))
	if err != nil {
		return err
	}
	var answer map[string]any
	return errors.Join(json.NewDecoder(resp.Body).Decode(&answer), resp.Body.Close())
}

// guest instantiates the module with WASI and runs it.
func (f *Floor) guest(dir string) error {
	store := wasmtime.NewStore(f.engine)
	defer store.Close()
	store.SetEpochDeadline(1 << 40)
	store.Limiter(512<<20, 100_000, 1000, 1000, 1)
	wasi := wasmtime.NewWasiConfig()
	wasi.SetArgv([]string{"noop"})
	if f.cfg.Files {
		if err := wasi.PreopenDir(filepath.Join(dir, "work"), "/", wasmtime.DIR_READ|wasmtime.DIR_WRITE, wasmtime.FILE_READ|wasmtime.FILE_WRITE); err != nil {
			return err
		}
	}
	store.SetWasi(wasi)
	instance, err := f.linker.Instantiate(store, f.module)
	if err != nil {
		return err
	}
	_, err = instance.GetFunc(store, "_start").Call(store)
	return err
}
