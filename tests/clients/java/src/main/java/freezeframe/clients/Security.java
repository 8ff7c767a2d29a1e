package freezeframe.clients;

import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/**
 * How clients speak with the broker: over TLS if there is a file that says whom they trust, and with SASL if there is a
 * mechanism.
 *
 * @param trust a file in PEM or PKCS12, as the next one with the client's certificates and key
 * @param secret a password; of a token, the file
 */
record Security(String mechanism, Path trust, Path certificate, String user, String secret) {

    /** FREEZEFRAME_TLS_DIRECTORY names a directory of make-certificates.sh, FREEZEFRAME_SASL_MECHANISM a mechanism. */
    static Map<String, Object> config() {
        String directory = System.getenv("FREEZEFRAME_TLS_DIRECTORY");
        boolean tls = directory != null;
        return new Security(System.getenv("FREEZEFRAME_SASL_MECHANISM"),
                tls ? Path.of(directory, "trust.p12") : null, tls ? Path.of(directory, "other.p12") : null,
                System.getenv("FREEZEFRAME_SASL_USER"), System.getenv("FREEZEFRAME_SASL_PASSWORD")).settings();
    }

    static Map<String, Object> with(Map<String, Object> more) {
        Map<String, Object> config = config();
        config.putAll(more);
        return config;
    }

    Map<String, Object> settings() {
        Map<String, Object> config = new HashMap<>();
        config.put("security.protocol", (mechanism == null ? "" : "SASL_") + (trust == null ? "PLAINTEXT" : "SSL"));
        if (trust != null) {
            store(config, "ssl.truststore", trust);
        }
        if (certificate != null) {
            store(config, "ssl.keystore", certificate);
        }
        if (mechanism != null) {
            config.put("sasl.mechanism", mechanism);
            config.put("sasl.jaas.config", loginModule());
        }
        if ("OAUTHBEARER".equals(mechanism)) {
            String url = Path.of(secret).toUri().toString();
            // Kafka's clients read tokens only from where the JVM allows it.
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url);
            config.put("sasl.oauthbearer.token.endpoint.url", url);
            String handlers = "org.apache.kafka.common.security.oauthbearer.";
            config.put("sasl.login.callback.handler.class", handlers + "OAuthBearerLoginCallbackHandler");
            // The default one needs jose4j, to check signatures as brokers do.
            config.put("sasl.oauthbearer.jwt.validator.class", handlers + "ClientJwtValidator");
        }
        return config;
    }

    private String loginModule() {
        return switch (mechanism) {
            case "OAUTHBEARER" -> "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;";
            case "PLAIN" -> withPassword("plain.PlainLoginModule");
            default -> withPassword("scram.ScramLoginModule");
        };
    }

    private String withPassword(String module) {
        return "org.apache.kafka.common.security.%s required username=\"%s\" password=\"%s\";".formatted(module, user, secret);
    }

    private static void store(Map<String, Object> config, String prefix, Path file) {
        boolean pem = file.toString().endsWith(".pem");
        config.put(prefix + ".location", file.toString());
        config.put(prefix + ".type", pem ? "PEM" : "PKCS12");
        if (!pem) {
            config.put(prefix + ".password", "secret");
        }
    }
}
