// Package testenv starts what tests of Starling run against: real NATS servers
// with JetStream ([NATS], [Cluster]; as processes: [StartServerProcess], [ClusterOfProcesses]), a
// faulty network between a client and one of them ([Proxy]), hosts of their own
// with faulty cables ([Hosts]), users with the narrow rights of docs/security.md
// ([WorkerUser] and its like), real capsules, and a way to wait without sleeping
// ([Eventually]). Only tests import it.
//
// Everything takes a testing.TB, fails that test when it cannot start, and is
// stopped and waited for by its cleanup.
package testenv
