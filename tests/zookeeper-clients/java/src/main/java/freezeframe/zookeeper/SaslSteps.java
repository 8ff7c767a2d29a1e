package freezeframe.zookeeper;

import static freezeframe.zookeeper.Steps.equal;

import java.util.Map;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.auth.login.AppConfigurationEntry.LoginModuleControlFlag;
import javax.security.auth.login.Configuration;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;

/** ZooKeeper's own client with DIGEST-MD5. */
final class SaslSteps {
    private final String at;
    private final String user;
    private final String password;

    SaslSteps(String at, String user, String password) {
        this.at = at;
        this.user = user;
        this.password = password;
    }

    private ZooKeeper login(String password) throws Exception {
        // With it, the client does not use DIGEST-MD5.
        System.setProperty("zookeeper.fips-mode", "false");
        Map<String, String> options = Map.of("username", user, "password", password);
        String module = "org.apache.zookeeper.server.auth.DigestLoginModule";
        AppConfigurationEntry entry = new AppConfigurationEntry(module, LoginModuleControlFlag.REQUIRED, options);
        Configuration.setConfiguration(new Configuration() {
            @Override
            public AppConfigurationEntry[] getAppConfigurationEntry(String name) {
                return name.equals("Client") ? new AppConfigurationEntry[] {entry} : null;
            }
        });
        return Main.plain(at);
    }

    /** After these, every client of this process logs in. */
    void run(Steps steps) throws Exception {
        ZooKeeper stranger = Main.plain(at);
        stranger.exists("/", false);
        steps.step("sasl-user-owns-its-znodes", () -> {
            ZooKeeper member = login(password);
            member.exists("/", false);
            String ids = member.whoAmI().toString();
            equal("whether it is known by SASL in " + ids, true, ids.contains("'sasl,'" + user));
            member.create("/sasl", new byte[0], Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
            equal("owner", "sasl:" + user, member.getACL("/sasl", null).get(0).getId().toString().trim().replace("'", "").replace(",", ":"));
            equal("for others", Code.NOAUTH, PlainSteps.code(() -> stranger.getData("/sasl", false, null)));
            member.close();
        });
        steps.step("sasl-wrong-password-is-refused", () -> {
            ZooKeeper impostor = login(password + "x");
            equal("code", Code.AUTHFAILED, PlainSteps.code(() -> impostor.exists("/", false)));
            impostor.close();
        });
        stranger.close();
    }
}
