package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/sqsworker/sqsworker/worker"
)

// browser is a headless Chromium.
func browser(t *testing.T) func(args ...string) []byte {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		return func(args ...string) []byte {
			t.Helper()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, path, append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
				"--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--user-data-dir=" + t.TempDir()}, args...)...)
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			return out
		}
	}
	t.Skip("there is no Chromium here: apt-get install chromium")
	return nil
}

// measured is what the page looks like to a browser.
type measured struct {
	Width     int      // of what there is to scroll over
	Outside   []string // elements that reach beyond the page
	Cut       []string // elements whose text is cut off
	Smallest  float64  // font size in pixels
	Rows      int      // handlers that are listed
	Bars      int      // of the spark line
	Resources int      // fetched beside the page itself
	Color     string   // of the verdict
}

// frame shows the page at a width, and measures it.
const frame = `<!doctype html><body style="margin:0"><iframe src="/statusz?format=html" style="border:0;width:%dpx;height:3000px"></iframe><pre id="measured"></pre><script>
document.querySelector("iframe").onload = (e) => {
  const w = e.target.contentWindow, d = w.document, name = (x) => x.tagName + "." + x.className + " " + x.textContent.trim().slice(0, 40);
  const all = [...d.body.querySelectorAll("*")].filter((x) => !x.closest("svg") && !x.closest("thead"));
  const text = all.filter((x) => [...x.childNodes].some((n) => n.nodeType == 3 && n.data.trim()));
  document.querySelector("#measured").textContent = JSON.stringify({
    Width: d.documentElement.scrollWidth,
    Outside: all.filter((x) => x.getBoundingClientRect().right > %d + 0.5).map(name),
    Cut: text.filter((x) => x.scrollWidth > x.clientWidth + 1 && w.getComputedStyle(x).display != "inline").map(name),
    Smallest: Math.min(...text.map((x) => parseFloat(w.getComputedStyle(x).fontSize))),
    Rows: d.querySelectorAll(".running tbody tr").length, Bars: d.querySelectorAll("svg rect").length,
    Resources: w.performance.getEntriesByType("resource").length,
    Color: w.getComputedStyle(d.querySelector(".verdict")).color,
  });
};
</script></body>`

// busy is a worker that shows everything its page can: it takes real time, because a browser does.
func busy(t *testing.T) http.Handler {
	t.Helper()
	q := newQueueWithDLQ(t, 20, "VisibilityTimeout", "30")
	w, err := worker.New(q.Client(), q.url, worker.HandlerFunc(func(ctx context.Context, m *worker.Message) error {
		switch len(m.Body) {
		case 1:
			<-ctx.Done()
			return context.Cause(ctx)
		case 2:
			return errors.New("charging the card: the payment service answered 503 Service Unavailable (request 6f9619ff-8b86-d011-b42d-00c04fc964ff)")
		}
		return nil
	}), worker.Config{Name: "payments-eu-west-1-orders-to-be-charged", Concurrency: 12, DrainTimeout: 2 * time.Second, WaitTime: time.Second, Logger: slog.New(&logbook{})})
	if err != nil {
		t.Fatal(err)
	}
	h := worker.StatusHandler(w)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	bodies := []string{}
	for i := range 40 {
		bodies = append(bodies, fmt.Sprint(1000+i))
	}
	q.MustSend(q.url, bodies...)
	q.MustSend(q.url, "10", "11", "12")
	q.MustSend(q.url, "1", "2", "3", "4", "5", "6", "7")
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if s := w.Stats(); s.Running == 7 && s.Deleted == 40 && s.Failed >= 3 {
			return h
		}
	}
	t.Fatalf("the worker isn't busy as it should be: %+v", w.Stats())
	return nil
}

func TestTheStatusPageLooksRightInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds of real time")
	}
	open := browser(t)
	status := busy(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/statusz", func(to http.ResponseWriter, from *http.Request) {
		answer := httptest.NewRecorder()
		status.ServeHTTP(answer, from)
		if from.Header.Get("Sec-Fetch-Dest") != "iframe" { // the screenshots' page, as it is served
			for name := range answer.Header() {
				to.Header().Set(name, answer.Header().Get(name))
			}
		}
		_, _ = to.Write(answer.Body.Bytes())
	})
	mux.HandleFunc("/frame/{width}", func(to http.ResponseWriter, from *http.Request) {
		var width int
		_, _ = fmt.Sscan(from.PathValue("width"), &width)
		fmt.Fprintf(to, frame, width, width)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, width := range []int{360, 1280} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			dom := open(fmt.Sprintf("--window-size=%d,3000", max(width, 600)), "--virtual-time-budget=5000", "--dump-dom", fmt.Sprintf("%s/frame/%d", server.URL, width))
			found := regexp.MustCompile(`(?s)<pre id="measured">(.*?)</pre>`).FindSubmatch(dom)
			var m measured
			if found == nil {
				t.Fatalf("the page wasn't measured: %s", dom)
			}
			if err := json.Unmarshal([]byte(html.UnescapeString(string(found[1]))), &m); err != nil {
				t.Fatalf("%v: %s", err, found[1])
			}
			if m.Width > width || len(m.Outside) > 0 {
				t.Errorf("the page is %d pixels wide at %d; beyond it are %q", m.Width, width, m.Outside)
			}
			if len(m.Cut) > 0 {
				t.Errorf("text is cut off: %q", m.Cut)
			}
			if m.Smallest < 12 || m.Rows != 7 || m.Bars == 0 || m.Resources != 0 {
				t.Errorf("smallest font %v px, %d handlers listed, %d bars, %d further resources", m.Smallest, m.Rows, m.Bars, m.Resources)
			}
			if m.Color != "rgb(26, 127, 75)" {
				t.Errorf("the verdict's colour is %s: the style didn't apply", m.Color)
			}
			if dir := os.Getenv("STATUSZ_SCREENSHOTS"); dir != "" { // to be looked at
				target := "/frame/360"
				if width > 600 {
					target = "/statusz?format=html"
				}
				open(fmt.Sprintf("--window-size=%d,1900", max(width, 500)), "--virtual-time-budget=3000", "--screenshot="+filepath.Join(dir, fmt.Sprintf("statusz-%d.png", width)), server.URL+target)
			}
		})
	}
}
