// Package freezeframe reads the past of a Freezeframe server over HTTP, and spells moments for stock Kafka clients.
//
//	client, err := freezeframe.Connect("http://127.0.0.1:8080", freezeframe.Options{})
//	topic, err := client.MomentTopic(ctx, "orders", "yesterday 14:00")
//	consumer, err := kgo.NewClient(kgo.ConsumeTopics(topic), …)
//
// A moment is text as in docs/TIME.md: s1795252948259, yesterday 14:00 (in UTC), -10m, pin:audit. The package is this one file,
// and needs the standard library only.
package freezeframe

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// answerBytesMax bounds what is read of an answer.
const answerBytesMax = 256 << 20

// Error is a request that the server refused.
type Error struct {
	// Code is for programs: unknown_topic, before_history, not_yet, … as docs/HISTORY-API.md lists them.
	Code string
	// Message is a sentence for people.
	Message string
	// RetryAfter is the time to wait before the same request may succeed; 0 if the server does not say.
	RetryAfter time.Duration
}

func (e *Error) Error() string { return e.Message + " (" + e.Code + ")" }

// HasCode reports whether the error is a refusal with this code.
func HasCode(err error, code string) bool {
	var refusal *Error
	return errors.As(err, &refusal) && refusal.Code == code
}

// Options say who asks, and whom the client trusts. The zero value asks without a login.
type Options struct {
	// User and Password, or Token, log in. Over plain HTTP they are sent in the clear.
	User, Password string
	Token          string
	// TLS has the trusted authorities, and the client's certificate; nil for the system's authorities.
	TLS *tls.Config
	// Timeout bounds a request, with its wait for a moment that is not past yet; 0 is 90 s.
	Timeout time.Duration
}

// Client asks one server. Goroutines may share it.
type Client struct {
	url     string
	options Options
	http    *http.Client
}

// Connect makes a client of a server's HTTP port. It sends nothing yet.
func Connect(address string, options Options) (*Client, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" {
		return nil, fmt.Errorf("%q is not the address of a server, as http://127.0.0.1:8080 is", address)
	}
	if parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" {
		return nil, fmt.Errorf("%q has more than a host, a port and a path: logins are in Options", parsed.Redacted())
	}
	if options.Token != "" && options.User+options.Password != "" {
		return nil, errors.New("log in by a user and password, or by a token, not both")
	}
	if options.Timeout == 0 {
		options.Timeout = 90 * time.Second
	}
	return &Client{
		url:     strings.TrimSuffix(address, "/") + "/v1",
		options: options,
		http: &http.Client{
			Timeout:       options.Timeout,
			Transport:     &http.Transport{TLSClientConfig: options.TLS, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Moment returns the moment that a text means, in full: it means the same whenever it is used. An empty text is the present,
// with all that was acknowledged.
func (c *Client) Moment(ctx context.Context, text string) (string, error) {
	var answer struct{ At string }
	err := c.ask(ctx, map[string]any{"op": "moment", "at": orNull(text)}, &answer)
	return answer.At, err
}

// MomentTopic returns the name under which any Kafka client reads a topic as of a moment, or between two (FROM..UNTIL).
func (c *Client) MomentTopic(ctx context.Context, topic, text string) (string, error) {
	moment, err := c.Moment(ctx, text)
	if err != nil {
		return "", err
	}
	return MomentTopic(topic, moment)
}

// PartitionCut is the part of a partition that is in a cut: from Start, the first offset that is kept, to End, exclusive.
type PartitionCut struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Start     int64  `json:"start"`
	End       int64  `json:"end"`
}

// Cut is the end of every partition at one moment. Two cuts with one hash have the same records.
type Cut struct {
	At         string         `json:"at"`
	Hash       string         `json:"hash"`
	Durable    bool           `json:"durable"`
	Partitions []PartitionCut `json:"partitions"`
}

// Cut returns the end of every partition at a moment; an empty text is the present. Without topics, it is of all.
func (c *Client) Cut(ctx context.Context, at string, topics ...string) (Cut, error) {
	if at == "" {
		at = "now"
	}
	var cut Cut
	err := c.ask(ctx, map[string]any{"op": "cut", "at": at, "topics": listOrNull(topics)}, &cut)
	return cut, err
}

// SoughtOffset is the committed offset of a partition before and after a group was set; nil for none.
type SoughtOffset struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Before    *int64 `json:"before"`
	After     *int64 `json:"after"`
}

// SeekGroup sets a group without members to a moment: it goes on with what came after it. Without topics, it does so for all that
// the group has committed an offset for.
func (c *Client) SeekGroup(ctx context.Context, group, at string, topics ...string) ([]SoughtOffset, error) {
	var answer struct{ Offsets []SoughtOffset }
	err := c.ask(ctx, map[string]any{"op": "seek_group", "group": group, "at": at, "topics": listOrNull(topics)}, &answer)
	return answer.Offsets, err
}

// Pin is a named moment that retention keeps readable until it expires.
type Pin struct {
	Name    string
	At      string
	Expires time.Time
}

// Pin keeps a moment readable for a while, whatever retention says; an empty text is the present. Without topics, all are kept.
func (c *Client) Pin(ctx context.Context, name, at string, keepFor time.Duration, topics ...string) (Pin, error) {
	moment, err := c.Moment(ctx, at)
	if err != nil {
		return Pin{}, err
	}
	var answer struct {
		Pin struct {
			Name      string `json:"name"`
			At        string `json:"at"`
			ExpiresMs int64  `json:"expires_ms"`
		} `json:"pin"`
	}
	document := map[string]any{"op": "pin", "name": name, "at": moment, "for_ms": keepFor.Milliseconds(), "topics": listOrNull(topics)}
	err = c.ask(ctx, document, &answer)
	return Pin{answer.Pin.Name, answer.Pin.At, time.UnixMilli(answer.Pin.ExpiresMs).UTC()}, err
}

// Unpin removes a pin before it expires.
func (c *Client) Unpin(ctx context.Context, name string) error {
	var answer struct{}
	return c.ask(ctx, map[string]any{"op": "unpin", "name": name}, &answer)
}

// TimeMoment spells a time as a moment of system time. Between two milliseconds it rounds up, so the moment includes the whole of
// the first one.
func TimeMoment(at time.Time) (string, error) {
	ms := at.UnixMilli()
	if at.Nanosecond()%int(time.Millisecond) != 0 {
		ms++
	}
	if ms < 0 || ms >= 1<<48 {
		return "", fmt.Errorf("%v is before 1970 or too late to be a moment", at)
	}
	// A number in this range would be read as a time in seconds.
	if ms >= 1_000_000_000 && ms < 100_000_000_000 {
		return "s" + time.UnixMilli(ms).UTC().Format("20060102T150405.000Z"), nil
	}
	return "s" + strconv.FormatInt(ms, 10), nil
}

const (
	date   = `\d{8}T\d{6}(?:\.\d{1,9})?Z`
	system = `s(?:\d{1,15}|h[0-9a-f]{16}|` + date + `)`
	user   = `u(?:\d{1,15}|` + date + `)(?:@` + system + `)?`
	either = `(?:` + system + `|` + user + `)`
)

var (
	spelled   = regexp.MustCompile(`^` + either + `(?:\.\.` + either + `)?$`)
	pinMoment = regexp.MustCompile(`^pin:[A-Za-z0-9._-]+$`)
)

// MomentTopic returns the name under which any Kafka client reads a topic as of a moment in full, such as s1795252948259 or
// s1795252940000..s1795252948259, or of pin:NAME. [Client.MomentTopic] takes words too.
func MomentTopic(topic, moment string) (string, error) {
	switch {
	case topic == "":
		return "", errors.New("a topic has a name")
	case pinMoment.MatchString(moment):
		return topic + ".__at." + strings.Replace(moment, ":", ".", 1), nil
	case spelled.MatchString(moment):
		return topic + ".__at." + strings.ReplaceAll(moment, "@", ".as."), nil
	}
	return "", fmt.Errorf("%q is not a moment in full, as in s1795252948259: Client.MomentTopic takes words", moment)
}

func (c *Client) ask(ctx context.Context, document map[string]any, answer any) error {
	body, err := json.Marshal(document)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if c.options.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.options.Token)
	} else if c.options.User != "" {
		request.SetBasicAuth(c.options.User, c.options.Password)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax+1))
	if err != nil {
		return fmt.Errorf("read the answer to %s: %w", document["op"], err)
	}
	if len(text) > answerBytesMax {
		return fmt.Errorf("the answer to %s has more than %d bytes", document["op"], answerBytesMax)
	}
	if response.StatusCode != http.StatusOK {
		return refusal(response, text)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the server's answer to %s is not one: %w", document["op"], err)
	}
	return nil
}

func refusal(response *http.Response, text []byte) error {
	var document struct {
		Error *struct {
			Code    string
			Message string
			RetryMs int64 `json:"retry_ms"`
		}
	}
	if json.Unmarshal(text, &document) != nil || document.Error == nil {
		return fmt.Errorf("%s answered %s, and not as Freezeframe does", response.Request.URL.Host, response.Status)
	}
	after := time.Duration(document.Error.RetryMs) * time.Millisecond
	return &Error{document.Error.Code, document.Error.Message, after}
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func listOrNull(names []string) any {
	if len(names) == 0 {
		return nil
	}
	return names
}
