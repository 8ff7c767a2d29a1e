package freezeframe.zookeeper;

import static freezeframe.zookeeper.Steps.await;
import static freezeframe.zookeeper.Steps.equal;
import static freezeframe.zookeeper.Steps.holds;
import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.Watcher.WatcherType;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/** ZooKeeper's own client. */
final class PlainSteps {
    private static final byte[] EMPTY = {};
    private final String connect;
    private final String root;
    private final boolean past;

    PlainSteps(String connect, String root, boolean past) {
        this.connect = connect;
        this.root = root;
        this.past = past;
    }

    interface Call {
        Object run() throws Exception;
    }

    /** The code with which a call is refused. */
    static Code code(Call call) throws Exception {
        try {
            call.run();
            return Code.OK;
        } catch (KeeperException refused) {
            return refused.code();
        }
    }

    private static String create(ZooKeeper zk, String path, CreateMode mode) throws Exception {
        return zk.create(path, EMPTY, Ids.OPEN_ACL_UNSAFE, mode);
    }

    void run(Steps steps) throws Exception {
        String at = connect + root;
        ZooKeeper a = Main.plain(at);
        ZooKeeper b = Main.plain(at);
        steps.step("stats-and-versions", () -> {
            Stat created = new Stat();
            a.create("/s", "one".getBytes(UTF_8), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT, created);
            create(a, "/s/c", CreateMode.PERSISTENT);
            create(a, "/s/d", CreateMode.PERSISTENT);
            a.delete("/s/c", -1);
            Stat stat = b.exists("/s", false);
            equal("cversion, children", List.of(3, 1), List.of(stat.getCversion(), stat.getNumChildren()));
            holds("pzxid above czxid", stat.getPzxid() > stat.getCzxid(), stat);
            equal("czxid", created.getCzxid(), stat.getCzxid());
            equal("version", 1, a.setData("/s", EMPTY, 0).getVersion());
            equal("stale version", Code.BADVERSION, code(() -> a.setData("/s", EMPTY, 0)));
            equal("children left", Code.NOTEMPTY, code(() -> { a.delete("/s", -1); return null; }));
        });
        steps.step("multi", () -> {
            List<OpResult> done = a.multi(List.of(
                    Op.create("/m", EMPTY, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT),
                    Op.create("/m/s-", EMPTY, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_SEQUENTIAL),
                    Op.check("/m", 0),
                    Op.setData("/m", EMPTY, 0)));
            equal("results", 4, done.size());
            equal("refusal", Code.NONODE, code(() -> a.multi(List.of(
                    Op.setData("/m", EMPTY, -1), Op.delete("/none", -1)))));
            equal("version", 1, b.exists("/m", false).getVersion());
            List<OpResult> read = b.multi(List.of(Op.getChildren("/m"), Op.getData("/none")));
            equal("children", List.of("s-0000000000"), ((OpResult.GetChildrenResult) read.get(0)).getChildren());
            equal("error", Code.NONODE.intValue(), ((OpResult.ErrorResult) read.get(1)).getErr());
        });
        steps.step("acl-and-identity", () -> {
            ZooKeeper owner = Main.plain(at);
            owner.addAuthInfo("digest", "user:secret".getBytes(UTF_8));
            owner.create("/p", EMPTY, Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
            equal("stranger", Code.NOAUTH, code(() -> b.getData("/p", false, null)));
            equal("owner", 0, owner.getData("/p", false, null).length);
            equal("who", true, owner.whoAmI().stream().anyMatch(id -> id.getUser().equals("user")));
            owner.close();
        });
        steps.step("counts-and-ephemerals", () -> {
            create(a, "/e", CreateMode.EPHEMERAL);
            // ZooKeeper does not take the chroot off.
            equal("ephemerals", List.of(root + "/e"), a.getEphemerals());
            holds("znodes below the root", a.getAllChildrenNumber("/") >= 6, a.getAllChildrenNumber("/"));
            equal("child of an ephemeral", Code.NOCHILDRENFOREPHEMERALS,
                    code(() -> create(a, "/e/x", CreateMode.PERSISTENT)));
        });
        steps.step("watches", () -> {
            List<WatchedEvent> seen = Collections.synchronizedList(new ArrayList<>());
            b.addWatch("/w", seen::add, AddWatchMode.PERSISTENT_RECURSIVE);
            create(a, "/w", CreateMode.PERSISTENT);
            create(a, "/w/x", CreateMode.PERSISTENT);
            a.setData("/w/x", EMPTY, -1);
            a.setData("/w/x", EMPTY, -1);
            a.delete("/w/x", -1);
            await("five events", () -> seen.size() >= 5);
            equal("events", List.of(EventType.NodeCreated, EventType.NodeCreated, EventType.NodeDataChanged,
                    EventType.NodeDataChanged, EventType.NodeDeleted),
                    seen.stream().map(WatchedEvent::getType).toList());
            holds("zxids rise", seen.get(4).getZxid() > seen.get(0).getZxid(), seen);
            b.removeAllWatches("/w", WatcherType.Any, false);
            equal("none left", Code.NOWATCHER, code(() -> { b.removeAllWatches("/w", WatcherType.Any, false); return null; }));
        });
        steps.step("an-event-comes-before-its-cause-shows", () -> {
            for (int round = 0; round < 100; round++) {
                CountDownLatch fired = new CountDownLatch(1);
                String path = "/order" + round;
                b.exists(path, event -> fired.countDown());
                create(a, path, CreateMode.PERSISTENT);
                while (b.exists(path, false) == null) {
                    Thread.onSpinWait();
                }
                holds("the event", fired.await(1, TimeUnit.SECONDS), "only its cause");
            }
        });
        steps.step("a-session-goes-on-with-its-password", () -> {
            ZooKeeper first = Main.plain(at);
            create(first, "/keeps", CreateMode.EPHEMERAL);
            ZooKeeper second = new ZooKeeper(at, 10_000, event -> {}, first.getSessionId(), first.getSessionPasswd());
            equal("owner", first.getSessionId(), second.exists("/keeps", false).getEphemeralOwner());
            second.close();
            await("no ephemeral", () -> a.exists("/keeps", false) == null);
            CountDownLatch expired = new CountDownLatch(1);
            ZooKeeper third = new ZooKeeper(at, 10_000, event -> {
                if (event.getState() == KeeperState.Expired) {
                    expired.countDown();
                }
            }, first.getSessionId(), first.getSessionPasswd());
            holds("an ended session", expired.await(10, TimeUnit.SECONDS), "one that goes on");
            third.close();
            first.close();
        });
        steps.step("container-and-ttl", () -> {
            create(a, "/container", CreateMode.CONTAINER);
            equal("owner", 0L, a.exists("/container", false).getEphemeralOwner());
            a.create("/ttl", EMPTY, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, new Stat(), 60_000);
            equal("there", 0, b.getData("/ttl", false, null).length);
        });
        steps.step("pipelined-in-order", () -> {
            CountDownLatch answered = new CountDownLatch(1000);
            List<Integer> order = Collections.synchronizedList(new ArrayList<>());
            for (int n = 0; n < 1000; n++) {
                int mine = n;
                a.create("/async" + n, EMPTY, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT, (rc, path, ctx, name) -> {
                    order.add(rc == 0 ? mine : -1);
                    answered.countDown();
                }, null);
            }
            holds("all answers", answered.await(10, TimeUnit.SECONDS), answered.getCount() + " missing");
            holds("order", order.equals(order.stream().sorted().toList()) && order.get(0) == 0, order);
        });
        if (past) {
            steps.step("the-past-below-a-chroot", () -> {
                a.create("/then", "one".getBytes(UTF_8), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
                long begun = System.currentTimeMillis();
                await("a later millisecond", () -> System.currentTimeMillis() > begun + 1);
                a.setData("/then", "two".getBytes(UTF_8), -1);
                ZooKeeper then = Main.plain(connect + "/.at/s" + (begun + 1) + root);
                equal("data", "one", new String(then.getData("/then", false, null), UTF_8));
                equal("write", Code.NOTREADONLY, code(() -> then.setData("/then", EMPTY, -1)));
                then.close();
            });
        }
        a.close();
        b.close();
    }
}
