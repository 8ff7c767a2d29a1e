package freezeframe.clients;

import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/**
 * How clients speak with the broker: over TLS if FREEZEFRAME_TLS_DIRECTORY names a directory of make-certificates.sh, and
 * with SASL if FREEZEFRAME_SASL_MECHANISM names a mechanism.
 */
final class Security {
    private Security() {}

    static Map<String, Object> config() {
        Map<String, Object> config = new HashMap<>();
        String directory = System.getenv("FREEZEFRAME_TLS_DIRECTORY");
        if (directory != null) {
            config.putAll(Map.of(
                    "security.protocol", "SSL", "ssl.truststore.location", Path.of(directory, "trust.p12").toString(),
                    "ssl.truststore.password", "secret", "ssl.truststore.type", "PKCS12",
                    "ssl.keystore.location", Path.of(directory, "other.p12").toString(),
                    "ssl.keystore.password", "secret", "ssl.key.password", "secret", "ssl.keystore.type", "PKCS12"));
        }
        String mechanism = System.getenv("FREEZEFRAME_SASL_MECHANISM");
        if (mechanism != null) {
            config.put("security.protocol", directory == null ? "SASL_PLAINTEXT" : "SASL_SSL");
            config.put("sasl.mechanism", mechanism);
            String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
            config.put("sasl.jaas.config", "org.apache.kafka.common.security.%s required username=\"%s\" password=\"%s\";"
                    .formatted(module, System.getenv("FREEZEFRAME_SASL_USER"), System.getenv("FREEZEFRAME_SASL_PASSWORD")));
        }
        return config;
    }

    static Map<String, Object> with(Map<String, Object> more) {
        Map<String, Object> config = config();
        config.putAll(more);
        return config;
    }
}
