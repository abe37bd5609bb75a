package heartbeat_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/heartbeat"
	"github.com/sqsworker/sqsworker/internal/sqsmodel"
)

func TestNewNamesEveryMistakeAtOnce(t *testing.T) {
	_, err := heartbeat.New(nil, "", heartbeat.Config{
		Visibility: 1500 * time.Millisecond, Interval: 13 * time.Hour, MaxHold: 13 * time.Hour, CeilingMargin: 7 * time.Hour, MaxCalls: -1,
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"no client", "no queue URL", "Config.Visibility is 1.5s", "Config.Interval is 13h0m0s", "Config.MaxHold is 13h0m0s", "Config.CeilingMargin is 7h0m0s", "Config.MaxCalls is -1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not in the error: %q\n%v", want, err)
		}
	}
}

func TestEveryBoundIsTakenAndWhatLiesBeyondIsNot(t *testing.T) {
	client := sqsmodel.New(sqsmodel.Config{}).Client()
	for _, c := range []struct {
		name string
		cfg  heartbeat.Config
		ok   bool
	}{
		{"zero", heartbeat.Config{}, true},
		{"shortest visibility", heartbeat.Config{Visibility: time.Second}, true},
		{"longest visibility", heartbeat.Config{Visibility: 12 * time.Hour}, true},
		{"visibility too long", heartbeat.Config{Visibility: 12*time.Hour + time.Second}, false},
		{"visibility below a second", heartbeat.Config{Visibility: 999 * time.Millisecond}, false},
		{"negative visibility", heartbeat.Config{Visibility: -time.Second}, false},
		{"interval off", heartbeat.Config{Interval: heartbeat.Never}, true},
		{"interval at three quarters", heartbeat.Config{Visibility: 4 * time.Second, Interval: 3 * time.Second}, true},
		{"interval beyond", heartbeat.Config{Visibility: 4 * time.Second, Interval: 3*time.Second + 1}, false},
		{"interval too short", heartbeat.Config{Interval: 49 * time.Millisecond}, false},
		{"shortest hold", heartbeat.Config{MaxHold: 2 * time.Second, Visibility: time.Second}, true},
		{"hold too short", heartbeat.Config{MaxHold: time.Second}, false},
		{"no margin", heartbeat.Config{CeilingMargin: heartbeat.NoMargin}, true},
		{"calls", heartbeat.Config{MaxCalls: 2049}, false},
	} {
		h, err := heartbeat.New(client, "https://sqs.us-east-1.amazonaws.com/123456789012/q", c.cfg)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		if h != nil {
			h.Close()
		}
	}
}

func TestTheDefaultIntervalIsAThird(t *testing.T) {
	for visibility, want := range map[time.Duration]time.Duration{
		time.Second: time.Second / 3, 3 * time.Second: time.Second, 5 * time.Second: 2 * time.Second, 30 * time.Second: 10 * time.Second,
		60 * time.Second: 20 * time.Second, 12 * time.Hour: 4 * time.Hour,
	} {
		if got := heartbeat.DefaultInterval(visibility); got != want {
			t.Errorf("%v: %v, want %v", visibility, got, want)
		}
	}
}
