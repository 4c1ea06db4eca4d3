// Package broker is Starling's side of the bus: NATS JetStream, spoken to
// directly. It owns the connection, the streams, consumers and buckets of
// docs/protocol.md section 2, deliveries and their settlement, the delegation
// ledger, frames, the capsule store, large results, the registry of workers and
// the embedded server.
//
// [Connect] (or [ConnectServer], in process) gives a [Bus]; everything else
// hangs on it. [Bus.Init] creates the topology with an operator's rights and is
// the only thing that creates any of it. No type and no error of a client
// library leaves the package: errors are the sentinels of errors.go, read with
// errors.Is.
//
// # Goroutines
//
// A Bus starts none of its own beside those of its connections, which end in
// [Bus.Close]. [Taker.Run] takes on its caller's goroutine. A [FrameSender] is
// driven by acks and by two timers, which end in [FrameSender.Close].
// [Bus.Announce] starts one heartbeat, which ends in [Heartbeat.Close].
// [Bus.Serve] and [Bus.ListenCancel] answer on the connection's goroutines until
// [Service.Close] and [CancelListener.Close]. [StartServer] starts the server's,
// which end in [Server.Close].
package broker
