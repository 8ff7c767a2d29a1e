package freezeframe.clients;

import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/** How clients speak with the broker: over TLS if FREEZEFRAME_TLS_DIRECTORY names a directory of make-certificates.sh. */
final class Security {
    private Security() {}

    static Map<String, Object> config() {
        String directory = System.getenv("FREEZEFRAME_TLS_DIRECTORY");
        if (directory == null) {
            return Map.of();
        }
        return Map.of(
                "security.protocol", "SSL", "ssl.truststore.location", Path.of(directory, "trust.p12").toString(),
                "ssl.truststore.password", "secret", "ssl.truststore.type", "PKCS12",
                "ssl.keystore.location", Path.of(directory, "other.p12").toString(),
                "ssl.keystore.password", "secret", "ssl.key.password", "secret", "ssl.keystore.type", "PKCS12");
    }

    static Map<String, Object> with(Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(config());
        config.putAll(more);
        return config;
    }
}
