package interruption

import (
	"context"
	"encoding/json"
	"time"
)

// spotWarning is how long before the interruption a Spot notice comes, at best.
const spotWarning = 2 * time.Minute

// instanceAction is the metadata item spot/instance-action.
type instanceAction struct {
	Action string    `json:"action"` // terminate, stop, hibernate
	Time   time.Time `json:"time"`   // when it will happen, about
}

// Spot reports the Spot interruption notice. For terminate and stop its deadline is the time in the notice, at most two
// minutes away whatever the local clock says. Hibernation begins with the notice: everything is given back at once.
func (m *EC2) Spot() Source {
	return Func(func(ctx context.Context, report func(Notice)) {
		m.poll(ctx, "spot/instance-action", func(body string) bool {
			report(m.spotNotice(body, time.Now()))
			return true
		})
	})
}

func (m *EC2) spotNotice(body string, now time.Time) Notice {
	n := Notice{Source: "EC2 Spot", Action: "interruption"}
	var action instanceAction
	err := json.Unmarshal([]byte(body), &action)
	if action.Action != "" {
		n.Action = action.Action
	}
	latest := now.Add(spotWarning)
	switch {
	case n.Action == "hibernate":
		n.Deadline = now
	case err != nil || action.Time.IsZero():
		m.cfg.Logger.Warn("a Spot notice can't be read: taken to leave two minutes", "error", err)
		n.Deadline = before(latest, now)
	case action.Time.After(latest):
		n.Deadline = before(latest, now)
	default:
		n.Deadline = before(action.Time, now)
	}
	return n
}
