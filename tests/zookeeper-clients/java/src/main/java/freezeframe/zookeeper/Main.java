package freezeframe.zookeeper;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.ZooKeeper;

/**
 * Main --connect HOST:PORT --run NAME [--past] [--sasl USER:PASSWORD] [--tls HOST:PORT=CERTIFICATES]: ZooKeeper's own
 * client, and Curator's recipes.
 */
public final class Main {
    private static final int SESSION_MS = 10_000;

    public static void main(String[] arguments) throws Exception {
        String connect = null;
        String run = null;
        boolean past = false;
        String[] sasl = null;
        String[] tls = null;
        for (int i = 0; i < arguments.length; i++) {
            switch (arguments[i]) {
                case "--connect" -> connect = arguments[++i];
                case "--run" -> run = arguments[++i];
                case "--past" -> past = true;
                case "--sasl" -> sasl = arguments[++i].split(":", 2);
                case "--tls" -> tls = arguments[++i].split("=", 2);
                default -> throw new IllegalArgumentException(arguments[i]);
            }
        }
        Steps steps = new Steps();
        steps.haltAfterSeconds(58);
        String root = "/clients-" + run + "-java";
        try (CuratorFramework top = curator(connect)) {
            top.create().creatingParentsIfNeeded().forPath(root);
        }
        new PlainSteps(connect, root, past).run(steps);
        new RecipeSteps(connect + root).run(steps);
        if (tls != null) {
            new TlsSteps(tls[0], tls[1], run).run(steps);
        }
        if (sasl != null) {
            new SaslSteps(connect + root, sasl[0], sasl[1]).run(steps);
        }
        System.exit(steps.failures() == 0 ? 0 : 1);
    }

    static CuratorFramework curator(String connect) {
        CuratorFramework curator =
                CuratorFrameworkFactory.newClient(connect, SESSION_MS, SESSION_MS, new RetryNTimes(3, 100));
        curator.start();
        return curator;
    }

    static ZooKeeper plain(String connect) throws Exception {
        return new ZooKeeper(connect, SESSION_MS, event -> {});
    }
}
