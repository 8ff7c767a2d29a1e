package freezeframe.zookeeper;

import static freezeframe.zookeeper.Steps.equal;

import java.io.FileInputStream;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.X509Certificate;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooDefs.Perms;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.client.ZKClientConfig;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Id;

/** ZooKeeper's own client over TLS, with the certificates of make-certificates.sh. */
final class TlsSteps {
    private static final String PASSWORD = "secret";
    private static final int REFUSED_WITHIN_MS = 2000;

    private final String at;
    private final Path certificates;
    private final String run;

    TlsSteps(String at, String certificates, String run) {
        this.at = at;
        this.certificates = Path.of(certificates);
        this.run = run;
    }

    /** The client whose certificate has this name; null for a client without any. */
    private ZooKeeper client(String name, CountDownLatch connected) throws Exception {
        ZKClientConfig config = new ZKClientConfig();
        config.setProperty(ZKClientConfig.SECURE_CLIENT, "true");
        config.setProperty(ZKClientConfig.ZOOKEEPER_CLIENT_CNXN_SOCKET, "org.apache.zookeeper.ClientCnxnSocketNetty");
        config.setProperty("zookeeper.ssl.trustStore.location", certificates.resolve("trust.p12").toString());
        config.setProperty("zookeeper.ssl.trustStore.password", PASSWORD);
        if (name != null) {
            config.setProperty("zookeeper.ssl.keyStore.location", certificates.resolve(name + ".p12").toString());
            config.setProperty("zookeeper.ssl.keyStore.password", PASSWORD);
        }
        return new ZooKeeper(at, 10_000, event -> {
            if (event.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        }, config);
    }

    private ZooKeeper connected(String name) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper client = client(name, connected);
        Steps.holds("a connection", connected.await(Steps.PATIENCE.toSeconds(), TimeUnit.SECONDS), "none");
        return client;
    }

    /** As Java writes the name in a certificate. */
    private String distinguishedName(String name) throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        try (FileInputStream file = new FileInputStream(certificates.resolve(name + ".p12").toFile())) {
            store.load(file, PASSWORD.toCharArray());
        }
        X509Certificate own = (X509Certificate) store.getCertificate(store.aliases().nextElement());
        return own.getSubjectX500Principal().getName();
    }

    void run(Steps steps) throws Exception {
        ZooKeeper member = connected("member");
        ZooKeeper other = connected("other");
        String path = "/tls-" + run;
        steps.step("tls-client-is-who-its-certificate-says", () -> {
            String name = distinguishedName("member");
            member.create(path, "x".getBytes(), Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
            equal("owner", List.of(new ACL(Perms.ALL, new Id("x509", name))), member.getACL(path, null));
            equal("whether whoAmI has it", true, member.whoAmI().stream().anyMatch(id -> id.getUser().equals(name)));
            equal("for others", Code.NOAUTH, PlainSteps.code(() -> other.getData(path, false, null)));
            equal("data", "x", new String(member.getData(path, false, null)));
        });
        steps.step("tls-lists-have-distinguished-names", () -> {
            for (String name : List.of("CN=a", "cn=a;O=b", "1.2.3=#0500", "")) {
                member.create(path + "/ok-", null, list(name), CreateMode.PERSISTENT_SEQUENTIAL);
            }
            for (String name : List.of("a", "CN=a,", "X=a", " ")) {
                equal("for " + name, Code.INVALIDACL, PlainSteps.code(() -> member.create(path + "/no", null, list(name), CreateMode.PERSISTENT)));
            }
        });
        steps.step("tls-super-user-by-certificate", () -> {
            ZooKeeper root = connected("root");
            equal("data", "x", new String(root.getData(path, false, null)));
            member.create(path + "/digest", null, Collections.singletonList(new ACL(Perms.ALL, new Id("digest", "a:b"))), CreateMode.PERSISTENT);
            equal("children of a list for another scheme", List.of(), root.getChildren(path + "/digest", false));
            root.close();
        });
        steps.step("tls-large-data-and-watches", () -> {
            byte[] large = new byte[900_000];
            Arrays.fill(large, (byte) 7);
            CountDownLatch changed = new CountDownLatch(1);
            member.getData(path, event -> changed.countDown(), null);
            member.setData(path, large, -1);
            equal("whether the watch fired", true, changed.await(Steps.PATIENCE.toSeconds(), TimeUnit.SECONDS));
            equal("whether the data is the same", true, Arrays.equals(large, member.getData(path, false, null)));
        });
        steps.step("tls-strangers-are-refused", () -> {
            for (String name : Arrays.asList("stranger", null)) {
                CountDownLatch connected = new CountDownLatch(1);
                ZooKeeper refused = client(name, connected);
                equal("whether " + name + " connects", false, connected.await(REFUSED_WITHIN_MS, TimeUnit.MILLISECONDS));
                refused.close(100);
            }
        });
        member.close();
        other.close();
    }

    private static List<ACL> list(String name) {
        return Collections.singletonList(new ACL(Perms.ALL, new Id("x509", name)));
    }
}
