package freezeframe

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestTimesAreSpelledInMillisecondsRoundedUp(t *testing.T) {
	nine := time.Date(2026, 11, 21, 9, 0, 0, 123_000_000, time.UTC)
	for _, c := range []struct {
		at       time.Time
		expected string
	}{
		{nine, "s1795251600123"},
		{nine.In(time.FixedZone("", -5*3600)), "s1795251600123"},
		{nine.Add(1), "s1795251600124"},
		{time.Date(1971, 1, 2, 3, 4, 5, 6_000_000, time.UTC), "s19710102T030405.006Z"},
	} {
		if spelled, err := TimeMoment(c.at); err != nil || spelled != c.expected {
			t.Errorf("expected %s, saw %s, %v", c.expected, spelled, err)
		}
	}
	for _, at := range []time.Time{time.UnixMilli(-1), time.UnixMilli(1 << 48)} {
		if spelled, err := TimeMoment(at); err == nil {
			t.Errorf("expected an error, saw %s", spelled)
		}
	}
}

func TestMomentsInFullMakeNamesOfTopics(t *testing.T) {
	for moment, expected := range map[string]string{
		"s5":                    "orders.__at.s5",
		"sh01a1fe6d31e10000":    "orders.__at.sh01a1fe6d31e10000",
		"u5@s7":                 "orders.__at.u5.as.s7",
		"s5..s7":                "orders.__at.s5..s7",
		"s20261121T090000.123Z": "orders.__at.s20261121T090000.123Z",
		"pin:audit":             "orders.__at.pin.audit",
	} {
		if topic, err := MomentTopic("orders", moment); err != nil || topic != expected {
			t.Errorf("expected %s, saw %s, %v", expected, topic, err)
		}
	}
	for _, moment := range []string{"", "now", "-10m", "yesterday 14:00", "5", "s5@s7", "s5..", "pin:", "s5\n"} {
		if topic, err := MomentTopic("orders", moment); err == nil {
			t.Errorf("%q: expected an error, saw %s", moment, topic)
		}
	}
	if _, err := MomentTopic("", "s5"); err == nil {
		t.Error("expected an error for a topic without a name")
	}
}

func TestARefusalHasACodeAndSaysWhenToRetry(t *testing.T) {
	for _, c := range []struct {
		document string
		expected Error
	}{
		{`{"error":{"code":"starting","message":"soon","frontier":null}}`, Error{"starting", "soon", 0}},
		{`{"error":{"code":"not_yet","message":"soon","retry_ms":1500}}`, Error{"not_yet", "soon", 1500 * time.Millisecond}},
	} {
		_, err := answered(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(c.document))
		})
		if refusal, ok := err.(*Error); !ok || *refusal != c.expected || !HasCode(err, c.expected.Code) {
			t.Errorf("expected %v, saw %v", c.expected, err)
		}
	}
}

func TestWhatIsNoAnswerIsAnError(t *testing.T) {
	for name, respond := range map[string]http.HandlerFunc{
		"half": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
		},
		"html":     func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"404":      func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) },
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
	} {
		if moment, err := answered(t, respond); err == nil || HasCode(err, "") {
			t.Errorf("%s: expected an error, saw %q, %v", name, moment, err)
		}
	}
}

func answered(t *testing.T, respond http.HandlerFunc) (string, error) {
	server := httptest.NewServer(respond)
	defer server.Close()
	client, err := Connect(server.URL+"/", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	return client.Moment(context.Background(), "")
}

func TestALoginIsInTheHeaderOfEachRequest(t *testing.T) {
	for expected, options := range map[string]Options{
		"Basic YWxpY2U6c2VjcmV0": {User: "alice", Password: "secret"},
		"Bearer abc":             {Token: "abc"},
	} {
		var seen string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen = r.Header.Get("Authorization")
			_, _ = w.Write([]byte(`{"at":"s5"}`))
		}))
		client, err := Connect(server.URL, options)
		if err != nil {
			t.Fatal(err)
		}
		if moment, err := client.Moment(context.Background(), "x"); err != nil || moment != "s5" || seen != expected {
			t.Errorf("expected %s, saw %s, %s, %v", expected, seen, moment, err)
		}
		client.Close()
		server.Close()
	}
}

func TestAWrongAddressIsNamed(t *testing.T) {
	for _, address := range []string{"", "127.0.0.1:8080", "ftp://a", "http://", "http://alice:secret@a", "http://a/?b=c"} {
		_, err := Connect(address, Options{})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: expected an error without the password, saw %v", address, err)
		}
	}
	if _, err := Connect("http://a", Options{User: "alice", Token: "abc"}); err == nil {
		t.Error("expected an error for two logins")
	}
}
