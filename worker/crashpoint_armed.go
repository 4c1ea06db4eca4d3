//go:build crashpoints

package worker

// Crashpoint is called at each of [Crashpoints], on the goroutine that does the
// step. A test binary sets it before any worker runs.
var Crashpoint = func(string) {}

// Crashpoints are the steps of a job's life, in the order they are done.
var Crashpoints = []string{
	"fetched",         // the job is in hand, nobody listens for a cancel
	"claiming",        // the record was read; the claim is not written
	"claimed",         // the claim is written
	"directory made",  // of the attempt
	"capsule fetched", // the module is on this host
	"prepared",        // the guest is about to start
	"guest running",   // its first frames are on their way
	"guest ended",     // its ending is known here alone
	"slot free",       // another guest may run
	"result stored",   // a large one, in the object store
	"frames stored",   // response and all
	"outcome written", // it stands in the ledger
	"file written",    // completion.json
	"task ended",      // the terminal status is stored
	"door answered",   // the parent knows
	"delivered",       // the ledger knows that it does
	"file rewritten",  // completion.json says delivered
	"settling",        // all that is left is the ack
}

func crashpoint(name string) { Crashpoint(name) }
