package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

const sessionTimeout = 10 * time.Second

var open = zk.WorldACL(zk.PermAll)

type silent struct{}

func (silent) Printf(string, ...interface{}) {}

// scenario works below root, through one connection unless a step needs another.
type scenario struct {
	connect string
	root    string
	conn    *zk.Conn
	steps   *steps
}

func newScenario(connect, root string, steps *steps) *scenario {
	return &scenario{connect: connect, root: root, steps: steps}
}

func (s *scenario) run(past bool) {
	s.steps.step("a session begins", func() error {
		conn, err := session(s.connect)
		if err != nil {
			return err
		}
		s.conn = conn
		_, err = conn.Create(s.root, nil, 0, open)
		return err
	})
	if s.conn == nil {
		return
	}
	defer s.conn.Close()
	s.steps.step("znodes of every kind are created", s.create)
	s.steps.step("data changes only at the expected version", s.versions)
	s.steps.step("what cannot be deleted is refused", s.deletions)
	s.steps.step("a transaction happens whole or not at all", s.transactions)
	s.steps.step("an access control list keeps others out", s.lists)
	s.steps.step("each watch fires once", s.watches)
	s.steps.step("ephemeral znodes go with their session", s.ephemerals)
	s.steps.step("a lock has one holder at a time", s.locks)
	s.steps.step("200 writes on their way keep their order", s.pipeline)
	s.steps.step("a session goes on at another connection, with its watches", s.reconnect)
	if past {
		s.steps.step("the past is read below a moment", s.past)
	}
}

// session connects, and waits for the session.
func session(connect string) (*zk.Conn, error) {
	conn, events, err := zk.Connect([]string{connect}, sessionTimeout, zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	return conn, awaitState(events, zk.StateHasSession)
}

func awaitState(events <-chan zk.Event, state zk.State) error {
	late := time.After(patience)
	for {
		select {
		case event := <-events:
			if event.State == state {
				return nil
			}
		case <-late:
			return fmt.Errorf("expected state %v, saw none of it in time", state)
		}
	}
}

func (s *scenario) create() error {
	for _, kind := range []struct {
		name  string
		flags int32
		want  string
	}{{"plain", 0, "plain"}, {"ephemeral", zk.FlagEphemeral, "ephemeral"}, {"n-", zk.FlagSequence, "n-0000000002"}} {
		path, err := s.conn.Create(s.root+"/"+kind.name, []byte(kind.name), kind.flags, open)
		if err != nil {
			return fmt.Errorf("create %s: %w", kind.name, err)
		}
		if err := equal("path", s.root+"/"+kind.want, path); err != nil {
			return err
		}
	}
	if _, err := s.conn.CreateContainer(s.root+"/container", nil, zk.FlagContainer, open); err != nil {
		return fmt.Errorf("create a container: %w", err)
	}
	if _, err := s.conn.CreateTTL(s.root+"/ttl", nil, zk.FlagTTL, open, time.Minute); err != nil {
		return fmt.Errorf("create with a time to live: %w", err)
	}
	_, stat, err := s.conn.Get(s.root + "/ephemeral")
	if err != nil {
		return err
	}
	if err := equal("owner", s.conn.SessionID(), stat.EphemeralOwner); err != nil {
		return err
	}
	_, err = s.conn.Create(s.root+"/plain", nil, 0, open)
	return fails("to create it again", zk.ErrNodeExists, err)
}

func (s *scenario) versions() error {
	path := s.root + "/plain"
	stat, err := s.conn.Set(path, []byte("two"), 0)
	if err != nil {
		return err
	}
	if err := equal("version", int32(1), stat.Version); err != nil {
		return err
	}
	_, err = s.conn.Set(path, []byte("three"), 0)
	if err := fails("an old version", zk.ErrBadVersion, err); err != nil {
		return err
	}
	data, stat, err := s.conn.Get(path)
	if err != nil {
		return err
	}
	if err := equal("data", "two", string(data)); err != nil {
		return err
	}
	return equal("length", int32(3), stat.DataLength)
}

func (s *scenario) deletions() error {
	if err := fails("a znode with children", zk.ErrNotEmpty, s.conn.Delete(s.root, -1)); err != nil {
		return err
	}
	err := s.conn.Delete(s.root+"/nothing", -1)
	if err := fails("a znode that is not there", zk.ErrNoNode, err); err != nil {
		return err
	}
	_, err = s.conn.Create(s.root+"/ephemeral/below", nil, 0, open)
	return fails("a child of an ephemeral znode", zk.ErrNoChildrenForEphemerals, err)
}

func (s *scenario) transactions() error {
	first := &zk.CreateRequest{Path: s.root + "/t", Data: []byte("1"), Acl: open}
	check := &zk.CheckVersionRequest{Path: s.root + "/plain", Version: 7}
	if _, err := s.conn.Multi(first, check); err == nil {
		return errors.New("expected the check to fail, saw no error")
	}
	if there, _, err := s.conn.Exists(s.root + "/t"); err != nil || there {
		return fmt.Errorf("expected nothing of it, saw %v %v", there, err)
	}
	set := &zk.SetDataRequest{Path: s.root + "/t", Data: []byte("2"), Version: 0}
	results, err := s.conn.Multi(first, set)
	if err != nil {
		return err
	}
	return equal("version", int32(1), results[1].Stat.Version)
}

func (s *scenario) lists() error {
	path := s.root + "/secret"
	if _, err := s.conn.Create(path, []byte("s"), 0, zk.DigestACL(zk.PermAll, "go", "secret")); err != nil {
		return err
	}
	_, _, err := s.conn.Get(path)
	if err := fails("a stranger", zk.ErrNoAuth, err); err != nil {
		return err
	}
	other, err := session(s.connect)
	if err != nil {
		return err
	}
	defer other.Close()
	if err := other.AddAuth("digest", []byte("go:secret")); err != nil {
		return err
	}
	data, _, err := other.Get(path)
	if err != nil {
		return err
	}
	return equal("data", "s", string(data))
}

func awaitEvent(events <-chan zk.Event, kind zk.EventType, path string) error {
	select {
	case event := <-events:
		if event.Type != kind || event.Path != path {
			return fmt.Errorf("expected %v of %s, saw %v of %s (%v)", kind, path, event.Type, event.Path, event.Err)
		}
		return nil
	case <-time.After(patience):
		return fmt.Errorf("expected %v of %s, saw none of it in time", kind, path)
	}
}

func (s *scenario) watches() error {
	path := s.root + "/watched"
	_, _, created, err := s.conn.ExistsW(path)
	if err != nil {
		return err
	}
	_, _, children, err := s.conn.ChildrenW(s.root)
	if err != nil {
		return err
	}
	if _, err := s.conn.Create(path, nil, 0, open); err != nil {
		return err
	}
	if err := awaitEvent(created, zk.EventNodeCreated, path); err != nil {
		return err
	}
	if err := awaitEvent(children, zk.EventNodeChildrenChanged, s.root); err != nil {
		return err
	}
	_, _, changed, err := s.conn.GetW(path)
	if err != nil {
		return err
	}
	for range 2 {
		if _, err := s.conn.Set(path, []byte("x"), -1); err != nil {
			return err
		}
	}
	if err := awaitEvent(changed, zk.EventNodeDataChanged, path); err != nil {
		return err
	}
	if event, more := <-changed; more {
		return fmt.Errorf("expected one event, saw %v too", event)
	}
	_, _, deleted, err := s.conn.GetW(path)
	if err != nil {
		return err
	}
	if err := s.conn.Delete(path, -1); err != nil {
		return err
	}
	return awaitEvent(deleted, zk.EventNodeDeleted, path)
}

func (s *scenario) ephemerals() error {
	other, err := session(s.connect)
	if err != nil {
		return err
	}
	path := s.root + "/of-another"
	if _, err := other.Create(path, nil, zk.FlagEphemeral, open); err != nil {
		return err
	}
	there, _, gone, err := s.conn.ExistsW(path)
	if err != nil || !there {
		return fmt.Errorf("expected it to be there, saw %v %v", there, err)
	}
	other.Close()
	return awaitEvent(gone, zk.EventNodeDeleted, path)
}

func (s *scenario) locks() error {
	const holders = 4
	var inside, most int
	var guard sync.Mutex
	errs := make(chan error, holders)
	for range holders {
		go func() {
			lock := zk.NewLock(s.conn, s.root+"/lock", open)
			if err := lock.Lock(); err != nil {
				errs <- err
				return
			}
			guard.Lock()
			inside++
			most = max(most, inside)
			guard.Unlock()
			// A round trip, so that another one has the time to come in.
			_, _, err := s.conn.Exists(s.root)
			guard.Lock()
			inside--
			guard.Unlock()
			errs <- errors.Join(err, lock.Unlock())
		}()
	}
	for range holders {
		if err := <-errs; err != nil {
			return err
		}
	}
	return equal("holders at once", 1, most)
}

func (s *scenario) pipeline() error {
	const writes = 200
	var waiting sync.WaitGroup
	failures := make(chan error, writes)
	for range writes {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			if _, err := s.conn.Create(s.root+"/lots-", nil, zk.FlagSequence, open); err != nil {
				failures <- err
			}
		}()
	}
	waiting.Wait()
	close(failures)
	if err := <-failures; err != nil {
		return err
	}
	names, _, err := s.conn.Children(s.root)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return len(name) < 5 || name[:5] != "lots-" })
	slices.Sort(names)
	return equal("different numbers", writes, len(slices.Compact(names)))
}

// proxy passes connections on, until they are cut.
type proxy struct {
	listener net.Listener
	guard    sync.Mutex
	open     []net.Conn
}

func newProxy(target string) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			p.guard.Lock()
			p.open = append(p.open, client, server)
			p.guard.Unlock()
			go func() { io.Copy(server, client); server.Close() }()
			go func() { io.Copy(client, server); client.Close() }()
		}
	}()
	return p, nil
}

func (p *proxy) cut() {
	p.guard.Lock()
	defer p.guard.Unlock()
	for _, conn := range p.open {
		conn.Close()
	}
	p.open = nil
}

func (s *scenario) reconnect() error {
	proxy, err := newProxy(s.connect)
	if err != nil {
		return err
	}
	defer proxy.listener.Close()
	conn, events, err := zk.Connect([]string{proxy.listener.Addr().String()}, sessionTimeout, zk.WithLogger(silent{}))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := awaitState(events, zk.StateHasSession); err != nil {
		return err
	}
	path := s.root + "/through-the-proxy"
	if _, err := conn.Create(path, nil, zk.FlagEphemeral, open); err != nil {
		return err
	}
	_, _, changed, err := conn.GetW(path)
	if err != nil {
		return err
	}
	id := conn.SessionID()
	proxy.cut()
	if _, err := s.conn.Set(path, []byte("meanwhile"), -1); err != nil {
		return err
	}
	if err := awaitState(events, zk.StateHasSession); err != nil {
		return err
	}
	if err := equal("session", id, conn.SessionID()); err != nil {
		return err
	}
	return awaitEvent(changed, zk.EventNodeDataChanged, path)
}

func (s *scenario) past() error {
	path := s.root + "/remembered"
	if _, err := s.conn.Create(path, []byte("one"), 0, open); err != nil {
		return err
	}
	begun := time.Now().UnixMilli()
	moment := begun
	for moment <= begun+1 {
		moment = time.Now().UnixMilli()
	}
	if _, err := s.conn.Set(path, []byte("two"), -1); err != nil {
		return err
	}
	then := fmt.Sprintf("/.at/s%d", moment)
	data, stat, err := s.conn.Get(then + path)
	if err != nil {
		return err
	}
	if err := errors.Join(equal("data", "one", string(data)), equal("version", int32(0), stat.Version)); err != nil {
		return err
	}
	_, err = s.conn.Set(then+path, []byte("three"), -1)
	if err == nil {
		return errors.New("expected the past to be read-only, saw no error")
	}
	return nil
}
