package main

import (
	"slices"
	"time"

	"starling/protocol"
	"starling/testenv"
)

// bookedPost is a post with what the door made of it.
type bookedPost struct {
	testenv.Post
	mood     string // of the door
	taken    bool   // the parent was told
	answered bool   // and said so to whoever told it
}

// booked are the posts by delegation, in order.
func (a *auditor) booked() map[protocol.DelegationID][]bookedPost {
	all := make(map[protocol.DelegationID][]bookedPost)
	if a.book == nil {
		for _, post := range a.door.Posts() {
			all[post.DelegationID] = append(all[post.DelegationID], bookedPost{Post: post, taken: true, answered: true})
		}
		return all
	}
	for _, post := range a.book() {
		all[post.DelegationID] = append(all[post.DelegationID], post)
	}
	return all
}

func (a *auditor) posts(job protocol.Job, rec protocol.Record, posts []bookedPost) {
	if !job.Spawner.HasAddress() {
		return
	}
	a.counts["posts"] += len(posts)
	for _, post := range posts {
		if post.MessageID != protocol.CompletionMessageID(job.DelegationID) {
			a.bad(otherID, job, "%s", post.MessageID)
		}
		if post.Text != posts[0].Text || post.Text != rec.Outcome.Text() {
			a.bad(otherStory, job, "%q", post.Text)
		}
	}
	if rec.Outcome.ParentEnded() {
		a.counts["not told: they ended it"]++
		if len(posts) > 0 {
			a.bad(endedTold, job, "%d posts", len(posts))
		}
		return
	}
	taken := slices.DeleteFunc(slices.Clone(posts), func(p bookedPost) bool { return !p.taken })
	if why := a.silence(job, rec, posts, taken); why == "" {
		a.bad(untold, job, "delivered %t, %d posts, %d taken, error %q", rec.Outcome.Delivered, len(posts), len(taken), rec.Outcome.DeliveryError)
	} else if !rec.Outcome.Delivered {
		a.counts["untold: "+why]++
	}
	for i := 1; i < len(taken); i++ {
		if why := a.again(job, rec, taken[i-1], taken[i]); why == "" {
			a.bad(twiceNoCause, job, "by %s at %s and %s", rec.Outcome.WorkerID, taken[i-1].At.Format(time.StampMilli), taken[i].At.Format(time.StampMilli))
		} else {
			a.counts["told twice: "+why]++
		}
	}
}

// silence is why the ledger may say what it says of the post; "" when it may not.
func (a *auditor) silence(job protocol.Job, rec protocol.Record, posts, taken []bookedPost) string {
	switch {
	case rec.Outcome.Delivered && len(taken) > 0:
		return "delivered"
	case rec.Outcome.Delivered || rec.Outcome.DeliveryError == "":
		return ""
	case a.closed != "":
		return a.closed
	case len(taken) > 0: // it was told, and who told it does not know
		for _, post := range taken {
			if post.answered && a.why(job, rec.Outcome.WorkerID, post.At, post.At.Add(time.Minute)) == "" {
				return ""
			}
		}
		return "the door took it, and its answer was lost"
	case len(posts) > 0:
		return "the door " + posts[len(posts)-1].mood
	case a.unheard != nil:
		return a.unheard(job, rec)
	}
	return ""
}

// again is why a parent that was told once was told again.
func (a *auditor) again(job protocol.Job, rec protocol.Record, first, second bookedPost) string {
	switch {
	case a.closed != "":
		return a.closed
	case !first.answered:
		return "the door's answer was lost"
	}
	if why := a.why(job, rec.Outcome.WorkerID, first.At, second.At); why != "" {
		return why
	}
	for _, m := range a.pauses[rec.Outcome.WorkerID] {
		if !m.from.After(second.At) && !m.to.Before(first.At) {
			return m.why
		}
	}
	return ""
}
