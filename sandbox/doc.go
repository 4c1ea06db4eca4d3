// Package sandbox runs capsules: it compiles a module, grants it exactly what a
// [Spec] says, bounds it, turns what it says into driver events, and reports
// how it ended. It knows nothing of the bus or of where a module came from.
//
// There are two ways to run: a [Supervisor] in sandbox processes, its children,
// and an [Engine] in this process, for embedding and tests. Inside a sandbox
// process an engine runs the guest as well, so the main path is
//
//	Supervisor.Run → compiled (compiler.go) → tryRun → take (slots.go) → remoteRun.run
//	    │ pipes: duplex.go, inlet_linux.go, pipe.go, pipemessage.go
//	    ▼
//	ProcessMain (child.go) → confine.Apply → childSlot.serve → childRun.run
//	    └► newRun → run.run → run.execute → the guest → run.Call (a host function) or run.Tick
//	       (must it stop?) → run.ending
//
// Where a directory is granted or a module is looked for, ground (ground.go) looks at
// the disk first. [Engine.Run] begins at modules.seat and newRun. A component, where
// [ProcessConfig].Components lets it run, goes from childRun.run to
// childRun.runComponent (component.go).
//
// What a guest writes to files is counted (room.go): when it may have used up its
// quota, it waits until whoever called Run has looked.
//
// Goroutines of an engine: the epoch ticker, started by [New] and ended by
// [Engine.Close]; one for each compilation under way, which [Engine.Close] waits
// for. A guest runs on the goroutine that called Run, and so do its host
// functions and emit.
//
// Goroutines of a supervisor: the starter, whose thread all processes are
// children of; two for each process, which wait for its end; one for each
// module that is looked for; one for each run that lasts, which tells it to stop.
// Run reads the guest's events, and calls emit, on the goroutine that called it.
// [Supervisor.Close] waits for all of them. Goroutines of a sandbox process: two
// for each guest at a time, one that runs it and one that hears that it must
// stop, and what its requests are answered; they end with the process. A
// component has two more, which read what it writes and end with it.
//
// A guest's requests (http.go) are made by the process that Run was called in
// (httpcalls.go, internal/egress), each on a goroutine of its own that ends before
// Run returns. Between a sandbox process and its supervisor they pass the same
// pipes (httppipe.go).
//
// Two things differ from what the engine would do by itself. Modules are
// rewritten a little before they are compiled, so that a limit can be told from
// a trap (internal/wasm), and writes to stdout and stderr are host functions
// rather than files or pipes: nothing has to be drained, the order of stdout
// and of import signals is the order of the calls, and a guest that waits for a
// slow reader waits in a place that knows its deadline.
package sandbox
