package freezeframe.zookeeper;

import static freezeframe.zookeeper.Steps.await;
import static freezeframe.zookeeper.Steps.equal;
import static freezeframe.zookeeper.Steps.holds;

import java.util.Collections;
import java.util.List;
import java.util.ArrayList;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.CreateMode;

/** Curator's recipes. */
final class RecipeSteps {
    private static final byte[] EMPTY = {};
    private final String connect;

    RecipeSteps(String connect) {
        this.connect = connect;
    }

    void run(Steps steps) {
        CuratorFramework a = Main.curator(connect);
        CuratorFramework b = Main.curator(connect);
        steps.step("leader-latch", () -> {
            CuratorFramework leaving = Main.curator(connect);
            LeaderLatch first = new LeaderLatch(leaving, "/latch", "1");
            first.start();
            holds("a leader", first.await(10, TimeUnit.SECONDS), "none");
            LeaderLatch second = new LeaderLatch(b, "/latch", "2");
            second.start();
            equal("second leader", false, second.hasLeadership());
            leaving.close();
            holds("the next leader", second.await(10, TimeUnit.SECONDS), "none");
            second.close();
        });
        steps.step("locks", () -> {
            InterProcessMutex one = new InterProcessMutex(a, "/mutex");
            InterProcessMutex other = new InterProcessMutex(b, "/mutex");
            one.acquire();
            equal("second holder", false, other.acquire(100, TimeUnit.MILLISECONDS));
            one.release();
            holds("second holder", other.acquire(10, TimeUnit.SECONDS), "none");
            other.release();
            InterProcessReadWriteLock shared = new InterProcessReadWriteLock(a, "/shared");
            InterProcessReadWriteLock elsewhere = new InterProcessReadWriteLock(b, "/shared");
            shared.readLock().acquire();
            holds("second reader", elsewhere.readLock().acquire(10, TimeUnit.SECONDS), "none");
            elsewhere.readLock().release();
            equal("writer", false, elsewhere.writeLock().acquire(100, TimeUnit.MILLISECONDS));
            shared.readLock().release();
        });
        steps.step("counters", () -> {
            DistributedAtomicLong sum = new DistributedAtomicLong(a, "/sum", new RetryNTimes(5, 10));
            DistributedAtomicLong same = new DistributedAtomicLong(b, "/sum", new RetryNTimes(5, 10));
            equal("first", 5L, sum.add(5L).postValue());
            equal("second", 7L, same.add(2L).postValue());
            SharedCount count = new SharedCount(a, "/count", 1);
            count.start();
            count.setCount(3);
            equal("count", 3, count.getCount());
            count.close();
        });
        steps.step("cache-with-a-recursive-watch", () -> {
            a.create().creatingParentsIfNeeded().forPath("/cache/x", EMPTY);
            List<CuratorCacheListener.Type> seen = Collections.synchronizedList(new ArrayList<>());
            CuratorCache cache = CuratorCache.build(b, "/cache");
            cache.listenable().addListener((type, before, after) -> seen.add(type));
            cache.start();
            await("what is there", () -> cache.get("/cache/x").isPresent());
            a.setData().forPath("/cache/x", new byte[] {1});
            await("the change", () -> cache.get("/cache/x").map(node -> node.getData().length).orElse(0) == 1);
            a.delete().forPath("/cache/x");
            await("its end", () -> cache.get("/cache/x").isEmpty());
            await("its event", () -> seen.get(seen.size() - 1) == CuratorCacheListener.Type.NODE_DELETED);
            cache.close();
        });
        steps.step("persistent-node-and-group-member", () -> {
            PersistentNode node = new PersistentNode(a, CreateMode.EPHEMERAL, false, "/persistent", EMPTY);
            node.start();
            holds("the node", node.waitForInitialCreate(10, TimeUnit.SECONDS), "none");
            b.delete().forPath("/persistent");
            await("the node again", () -> b.checkExists().forPath("/persistent") != null);
            node.close();
            GroupMember one = new GroupMember(a, "/members", "1");
            GroupMember two = new GroupMember(b, "/members", "2");
            one.start();
            two.start();
            await("both members", () -> one.getCurrentMembers().size() == 2);
            two.close();
            await("one member", () -> one.getCurrentMembers().size() == 1);
            one.close();
        });
        steps.step("transaction-and-barrier", () -> {
            a.transaction().forOperations(
                    a.transactionOp().create().forPath("/tx", EMPTY),
                    a.transactionOp().setData().forPath("/tx", EMPTY),
                    a.transactionOp().check().withVersion(1).forPath("/tx"));
            equal("version", 1, b.checkExists().forPath("/tx").getVersion());
            DistributedBarrier barrier = new DistributedBarrier(a, "/barrier");
            barrier.setBarrier();
            equal("barrier", false, new DistributedBarrier(b, "/barrier").waitOnBarrier(100, TimeUnit.MILLISECONDS));
            barrier.removeBarrier();
            equal("barrier", true, new DistributedBarrier(b, "/barrier").waitOnBarrier(10, TimeUnit.SECONDS));
        });
        a.close();
        b.close();
    }
}
