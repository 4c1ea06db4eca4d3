package broker

import (
	"strings"

	"starling/protocol"
)

// anyID stands in a subject of [RoleRights] for one id that the user's rights
// name, whichever it is.
const anyID = "?"

// RoleRights are the subjects that a role needs, and no others.
//
// Source: docs/configuration.md, Rights.
type RoleRights struct {
	Role               string
	Publish, Subscribe []string
}

// OperatorRights are all.
func OperatorRights() RoleRights {
	return RoleRights{"operator", []string{">"}, []string{">"}}
}

// WorkerRights are those of a worker of a pool, with any id.
func (b *Bus) WorkerRights(pool string) RoleRights {
	ns, api := b.ns, "$JS.API."
	ledger, index := kvStream(ns.LedgerBucket()), kvStream(ns.CapsuleIndexBucket())
	capsules, results := objStream(ns.CapsuleBucket()), objStream(ns.ResultBucket())
	r := RoleRights{Role: "worker of pool " + pool, Publish: []string{
		"$JS.ACK." + ns.JobsStream() + ".>", string(ns) + ".tasks.*", ns.DeadLetterSubject("*", "*"),
		kvSubject(ns.LedgerBucket(), "*.*"), kvSubject(ns.WorkerBucket(), anyID), ns.WorkerSubject(anyID, verbStats),
		"$O." + ns.ResultBucket() + ".C.*", "$O." + ns.ResultBucket() + ".M.*",
		api + "DIRECT.GET." + capsules, api + "STREAM.INFO." + kvStream(ns.WorkerBucket()),
	}, Subscribe: []string{"$SRV.>", ns.WorkerSubject(anyID, "*"), ns.PoolSubject(pool), ns.CancelSubject("*", "*")}}
	for _, lane := range protocol.Lanes() {
		consumer := ns.JobsStream() + "." + protocol.LaneConsumer(pool, lane)
		r.Publish = append(r.Publish, api+"CONSUMER.INFO."+consumer, api+"CONSUMER.MSG.NEXT."+consumer)
	}
	for _, stream := range []string{ledger, ns.TasksStream(), index, capsules, results} {
		r.Publish = append(r.Publish, api+"STREAM.INFO."+stream, api+"DIRECT.GET."+stream+".>")
	}
	return r
}

// ParentRights are those of a parent of any session.
func (b *Bus) ParentRights() RoleRights {
	ns, api := b.ns, "$JS.API."
	ledger := kvStream(ns.LedgerBucket())
	r := RoleRights{Role: "parent", Publish: []string{
		ns.JobSubject(anyID, anyID, "*"), kvSubject(ns.LedgerBucket(), anyID+".*"), ns.PoolSubject(anyID), ns.CancelSubject(anyID, "*"),
		api + "DIRECT.GET." + ledger + "." + kvSubject(ns.LedgerBucket(), anyID+".*"), api + "STREAM.INFO." + ledger,
	}, Subscribe: []string{ns.DelegationSubject(anyID, "*")}}
	for _, stream := range []string{kvStream(ns.CapsuleIndexBucket()), objStream(ns.ResultBucket())} {
		r.Publish = append(r.Publish, api+"STREAM.INFO."+stream, api+"DIRECT.GET."+stream, api+"DIRECT.GET."+stream+".>")
	}
	return r
}

// ObserverRights are those of an observer of any task.
func (b *Bus) ObserverRights() RoleRights {
	tasks, api := b.ns.TasksStream(), "$JS.API."
	return RoleRights{Role: "observer", Publish: []string{
		api + "STREAM.INFO." + tasks, api + "CONSUMER.CREATE." + tasks + ".*." + b.ns.TaskSubject(anyID),
		api + "CONSUMER.MSG.NEXT." + tasks + ".*", api + "CONSUMER.INFO." + tasks + ".*", api + "CONSUMER.DELETE." + tasks + ".*",
	}}
}

// covers reports whether a pattern of NATS covers all of a subject, which may be a
// pattern itself. An anyID in it is covered by any one token.
func covers(pattern, subject string) bool {
	have, want := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, token := range have {
		if token == ">" {
			return len(want) > i
		}
		if i >= len(want) || want[i] == ">" {
			return false
		}
		if token != "*" && token != want[i] && want[i] != anyID {
			return false
		}
	}
	return len(have) == len(want)
}
