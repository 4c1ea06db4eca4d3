// Package sandbox runs capsules: it compiles a module, grants it exactly what a
// [Spec] says, bounds it, turns what it says into driver events, and reports
// how it ended. It knows nothing of the bus or of where a module came from.
//
// The main path is [Engine.Run] → modules.acquire → run.start → the guest →
// run.Call (a host function) or run.Tick (must it stop?) → run.ending.
//
// Goroutines: the epoch ticker, started by [New] and ended by [Engine.Close];
// one for each compilation under way, which [Engine.Close] waits for. A guest
// runs on the goroutine that called Run, and so do its host functions and emit.
//
// Two things differ from what the engine would do by itself. Modules are
// rewritten a little before they are compiled, so that a limit can be told from
// a trap (internal/wasm), and writes to stdout and stderr are host functions
// rather than files or pipes: nothing has to be drained, the order of stdout
// and of import signals is the order of the calls, and a guest that waits for a
// slow reader waits in a place that knows its deadline.
package sandbox
