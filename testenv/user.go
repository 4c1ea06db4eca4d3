package testenv

import (
	"fmt"

	"github.com/nats-io/nats-server/v2/server"

	"starling/protocol"
)

// User is a user of a server and what it may do.
type User struct {
	Name, Password string
	// Publish and Subscribe list the subjects that are allowed; both empty:
	// everything.
	Publish, Subscribe []string
	// Responses allows answering what was asked.
	Responses bool
}

// InboxPrefix is the user's own, which its rights name.
func (u User) InboxPrefix() string { return "_INBOX_" + u.Name }

func (u User) nats() *server.User {
	user := &server.User{Username: u.Name, Password: u.Password}
	if len(u.Publish) == 0 && len(u.Subscribe) == 0 {
		return user
	}
	user.Permissions = &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: u.Publish},
		Subscribe: &server.SubjectPermission{Allow: append([]string{u.InboxPrefix() + ".>"}, u.Subscribe...)},
	}
	if u.Responses {
		user.Permissions.Response = &server.ResponsePermission{MaxMsgs: 1, Expires: server.DEFAULT_ALLOW_RESPONSE_EXPIRATION}
	}
	return user
}

// OperatorUser may do everything.
func OperatorUser() User { return User{Name: "operator", Password: "operator"} }

const api = "$JS.API."

// WorkerUser has the rights of a worker of a pool and no others.
//
// Source: docs/security.md, Rights; so for the other users.
func WorkerUser(ns protocol.Namespace, worker protocol.WorkerID, pool string) User {
	ledger, index := "KV_"+ns.LedgerBucket(), "KV_"+ns.CapsuleIndexBucket()
	capsules, results := "OBJ_"+ns.CapsuleBucket(), "OBJ_"+ns.ResultBucket()
	u := User{
		Name: "worker", Password: "worker", Responses: true,
		Publish: []string{
			"$JS.ACK." + ns.JobsStream() + ".>", string(ns) + ".tasks.*", string(ns) + ".dlq.*.*",
			"$KV." + ns.LedgerBucket() + ".*.*", "$KV." + ns.WorkerBucket() + "." + string(worker),
			ns.WorkerSubject(worker, "stats"),
			"$O." + ns.ResultBucket() + ".C.*", "$O." + ns.ResultBucket() + ".M.*",
			api + "DIRECT.GET." + capsules,
		},
		Subscribe: []string{
			"$SRV.>", ns.WorkerSubject(worker, "*"), ns.PoolSubject(pool), string(ns) + ".cancel.*.*",
		},
	}
	for _, lane := range protocol.Lanes() {
		consumer := ns.JobsStream() + "." + protocol.LaneConsumer(pool, lane)
		u.Publish = append(u.Publish, api+"CONSUMER.INFO."+consumer, api+"CONSUMER.MSG.NEXT."+consumer)
	}
	for _, stream := range []string{ledger, ns.TasksStream(), index, capsules, results} {
		u.Publish = append(u.Publish, api+"STREAM.INFO."+stream, api+"DIRECT.GET."+stream+".>")
	}
	u.Publish = append(u.Publish, api+"STREAM.INFO.KV_"+ns.WorkerBucket())
	return u
}

// ParentUser has the rights of a parent of a session and no others.
func ParentUser(ns protocol.Namespace, session protocol.SessionID) User {
	ledger := "KV_" + ns.LedgerBucket()
	u := User{
		Name: "parent", Password: "parent",
		Publish: []string{
			string(ns) + ".jobs.*.*.*", fmt.Sprintf("$KV.%s.%s.*", ns.LedgerBucket(), session),
			string(ns) + ".pools.*", fmt.Sprintf("%s.cancel.%s.*", ns, session),
			fmt.Sprintf("%sDIRECT.GET.%s.$KV.%s.%s.*", api, ledger, ns.LedgerBucket(), session),
			api + "STREAM.INFO." + ledger,
		},
		Subscribe: []string{fmt.Sprintf("%s.delegations.%s.*", ns, session)},
	}
	for _, stream := range []string{"KV_" + ns.CapsuleIndexBucket(), "OBJ_" + ns.ResultBucket()} {
		u.Publish = append(u.Publish, api+"STREAM.INFO."+stream, api+"DIRECT.GET."+stream, api+"DIRECT.GET."+stream+".>")
	}
	return u
}

// ObserverUser has the rights of an observer of a task, and of a session's
// delegations, and no others.
func ObserverUser(ns protocol.Namespace, session protocol.SessionID, task protocol.TaskID) User {
	tasks := ns.TasksStream()
	return User{
		Name: "observer", Password: "observer",
		Publish: []string{
			api + "STREAM.INFO." + tasks,
			fmt.Sprintf("%sCONSUMER.CREATE.%s.*.%s", api, tasks, ns.TaskSubject(task)),
			api + "CONSUMER.MSG.NEXT." + tasks + ".*", api + "CONSUMER.INFO." + tasks + ".*", api + "CONSUMER.DELETE." + tasks + ".*",
		},
		Subscribe: []string{fmt.Sprintf("%s.delegations.%s.*", ns, session)},
	}
}
