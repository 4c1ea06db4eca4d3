// Package worker runs the life of a job: take, claim, run, report, settle,
// drain. The main path reads
//
//	Worker.Run → work → Worker.do → delegation.attempt → attempt.run
//	                                        └► delegation.report → complete
//
// with a file per noun: job.go parses and claims, attempt.go runs the guest,
// segment.go turns what it says into frames, conclude.go maps its end to an
// ending, settle.go writes the outcome down, tell.go tells everybody in order,
// handback.go returns a task to the queue, hold.go keeps the delivery and the fence,
// cancel.go takes a parent's cancel; metrics.go and tracing.go show what they do.
//
// # Goroutines
//
//   - Taker.Run, started by work, ends when a drain takes no more.
//   - one per delivery (do), started by the taker's callback and waited for by
//     work; the guest runs on it.
//   - one per delivery that renews it (hold.renew), ended by hold.end.
//   - one per capsule that is asked for while it is downloaded, ended and waited
//     for by capsules.close, which Run calls last.
//   - housekeep, started and ended by Run.
//   - the heartbeat and the endpoints, owned by package broker and closed by Run.
//
// # Two ends
//
// "Take no more" is the drain. "Give up" comes in two steps after its timeout:
// guests are stopped and handed back, then what still hangs is left to be
// redelivered. Nothing is lost either way: a job is acked only after its outcome
// is in the ledger and its parent was told.
package worker
