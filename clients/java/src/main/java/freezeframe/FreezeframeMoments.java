package freezeframe;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;

/**
 * Reads the past of a Freezeframe server over HTTP, and spells moments for stock Kafka clients.
 *
 * <pre>{@code
 * FreezeframeMoments freezeframe = FreezeframeMoments.connect(URI.create("http://127.0.0.1:8080"));
 * consumer.subscribe(List.of(freezeframe.momentTopicOf("orders", "yesterday 14:00")));
 * }</pre>
 *
 * A moment is text as in docs/TIME.md: {@code s1795252948259}, {@code yesterday 14:00} (in UTC), {@code -10m}, {@code pin:audit}. The
 * library is this one file, and needs the JDK only. Threads may share an object.
 */
public final class FreezeframeMoments {
    private static final String DATE = "\\d{8}T\\d{6}(?:\\.\\d{1,9})?Z";
    private static final String SYSTEM = "s(?:\\d{1,15}|h[0-9a-f]{16}|" + DATE + ")";
    private static final String USER = "u(?:\\d{1,15}|" + DATE + ")(?:@" + SYSTEM + ")?";
    private static final String EITHER = "(?:" + SYSTEM + "|" + USER + ")";
    private static final Pattern SPELLED = Pattern.compile(EITHER + "(?:\\.\\." + EITHER + ")?");
    private static final Pattern PIN = Pattern.compile("pin:[A-Za-z0-9._-]+");
    private static final DateTimeFormatter BASIC =
            DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss.SSS'Z'").withZone(ZoneOffset.UTC);

    private final URI url;
    private final String authorization;
    private final Duration timeout;
    private final HttpClient http;

    /** The part of a partition that is in a cut: from {@code start}, the first offset that is kept, to {@code end}, exclusive. */
    public record PartitionCut(String topic, int partition, long start, long end) {}

    /** The end of every partition at one moment. Two cuts with one hash have the same records. */
    public record Cut(String at, String hash, boolean isDurable, List<PartitionCut> partitions) {}

    /** The committed offset of a partition before and after a group was set; empty for none. */
    public record SoughtOffset(String topic, int partition, OptionalLong before, OptionalLong after) {}

    /** A named moment that retention keeps readable until it expires. */
    public record Pin(String name, String at, Instant expires) {}

    /** A request that the server refused, or an answer that is none ({@code bad_answer}). */
    public static final class Refusal extends RuntimeException {
        private static final long serialVersionUID = 1;
        private final String code;
        private final Duration retryAfter;

        Refusal(String code, String message, Duration retryAfter) {
            super(message + " (" + code + ")");
            this.code = code;
            this.retryAfter = retryAfter;
        }

        /** For programs: {@code unknown_topic}, {@code before_history}, {@code not_yet}, … as docs/HISTORY-API.md lists them. */
        public String code() {
            return code;
        }

        /** The time to wait before the same request may succeed, if the server says it. */
        public Optional<Duration> retryAfter() {
            return Optional.ofNullable(retryAfter);
        }
    }

    private FreezeframeMoments(URI url, String authorization, Duration timeout, HttpClient http) {
        this.url = url;
        this.authorization = authorization;
        this.timeout = timeout;
        this.http = http;
    }

    /** Asks a server without TLS, or with the JDK's trusted authorities. It sends nothing yet. */
    public static FreezeframeMoments connect(URI address) {
        return connect(address, null);
    }

    /** Asks a server over TLS: the context has the trusted authorities, and the client's certificate; null for the JDK's. */
    public static FreezeframeMoments connect(URI address, SSLContext tls) {
        boolean isHttp = "http".equals(address.getScheme()) || "https".equals(address.getScheme());
        if (!isHttp || address.getHost() == null || address.getUserInfo() != null || address.getQuery() != null) {
            throw new IllegalArgumentException("not the address of a server, as http://127.0.0.1:8080 is; logins go into withLogin");
        }
        HttpClient.Builder builder = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(30));
        HttpClient http = (tls == null ? builder : builder.sslContext(tls)).build();
        URI url = URI.create(address.toString().replaceAll("/+$", "") + "/v1");
        return new FreezeframeMoments(url, null, Duration.ofSeconds(90), http);
    }

    /** The same, as this user. Over plain HTTP the password is sent in the clear. */
    public FreezeframeMoments withLogin(String user, String password) {
        byte[] login = (user + ":" + password).getBytes(StandardCharsets.UTF_8);
        return new FreezeframeMoments(url, "Basic " + Base64.getEncoder().encodeToString(login), timeout, http);
    }

    /** The same, as the owner of a token of OAuth. Over plain HTTP it is sent in the clear. */
    public FreezeframeMoments withToken(String token) {
        return new FreezeframeMoments(url, "Bearer " + token, timeout, http);
    }

    /** The same, with another bound on a request and its wait for a moment that is not past yet; it is 90 s by default. */
    public FreezeframeMoments withTimeout(Duration bound) {
        return new FreezeframeMoments(url, authorization, bound, http);
    }

    /** The present moment, with all that was acknowledged. */
    public String now() throws IOException, InterruptedException {
        return moment(null);
    }

    /** The moment that a text means, in full: it means the same whenever it is used. */
    public String moment(String text) throws IOException, InterruptedException {
        return ask(document("op", "moment", "at", text)).text("at");
    }

    /** The name under which any Kafka client reads a topic as of a moment, or between two ({@code FROM..UNTIL}). */
    public String momentTopicOf(String topic, String text) throws IOException, InterruptedException {
        return momentTopic(topic, moment(text));
    }

    /** The end of every partition of these topics, or of all if none is named. */
    public Cut cut(String at, String... topics) throws IOException, InterruptedException {
        Json answer = ask(document("op", "cut", "at", at, "topics", listOrNull(topics)));
        List<PartitionCut> partitions = new ArrayList<>();
        for (Json each : answer.list("partitions")) {
            partitions.add(new PartitionCut(each.text("topic"), (int) each.number("partition"), each.number("start"), each.number("end")));
        }
        return new Cut(answer.text("at"), answer.text("hash"), answer.is("durable"), List.copyOf(partitions));
    }

    /**
     * Sets a group without members to a moment: it goes on with what came after it. Without topics, it does so for all that the group has
     * committed an offset for.
     */
    public List<SoughtOffset> seekGroup(String group, String at, String... topics) throws IOException, InterruptedException {
        Json answer = ask(document("op", "seek_group", "group", group, "at", at, "topics", listOrNull(topics)));
        List<SoughtOffset> offsets = new ArrayList<>();
        for (Json each : answer.list("offsets")) {
            offsets.add(new SoughtOffset(
                    each.text("topic"), (int) each.number("partition"), each.numberOrNone("before"), each.numberOrNone("after")));
        }
        return List.copyOf(offsets);
    }

    /** Keeps a moment readable for a while, whatever retention says. Without topics, all are kept. */
    public Pin pin(String name, String at, Duration keepFor, String... topics) throws IOException, InterruptedException {
        Json pin = ask(document(
                        "op", "pin", "name", name, "at", moment(at), "for_ms", keepFor.toMillis(), "topics", listOrNull(topics)))
                .object("pin");
        return new Pin(pin.text("name"), pin.text("at"), Instant.ofEpochMilli(pin.number("expires_ms")));
    }

    /** Removes a pin before it expires. */
    public void unpin(String name) throws IOException, InterruptedException {
        ask(document("op", "unpin", "name", name));
    }

    /**
     * A time as a moment of system time. Between two milliseconds it rounds up, so the moment includes the whole of the first one.
     */
    public static String momentOf(Instant at) {
        long ms = at.toEpochMilli() + (at.getNano() % 1_000_000 == 0 ? 0 : 1);
        if (ms < 0 || ms >= 1L << 48) {
            throw new IllegalArgumentException(at + " is before 1970 or too late to be a moment");
        }
        // A number in this range would be read as a time in seconds.
        boolean isLikeSeconds = ms >= 1_000_000_000L && ms < 100_000_000_000L;
        return "s" + (isLikeSeconds ? BASIC.format(Instant.ofEpochMilli(ms)) : Long.toString(ms));
    }

    /** The name under which any Kafka client reads a topic as of a time. */
    public static String momentTopic(String topic, Instant at) {
        return momentTopic(topic, momentOf(at));
    }

    /**
     * The name under which any Kafka client reads a topic as of a moment in full, such as {@code s1795252948259} or
     * {@code s1795252940000..s1795252948259}, or of {@code pin:NAME}. {@link #momentTopicOf} takes words too.
     */
    public static String momentTopic(String topic, String moment) {
        if (topic.isEmpty()) {
            throw new IllegalArgumentException("a topic has a name");
        }
        if (PIN.matcher(moment).matches()) {
            return topic + ".__at." + moment.replaceFirst(":", ".");
        }
        if (SPELLED.matcher(moment).matches()) {
            return topic + ".__at." + moment.replace("@", ".as.");
        }
        throw new IllegalArgumentException(
                "\"" + moment + "\" is not a moment in full, as in s1795252948259: momentTopicOf takes words");
    }

    private Json ask(Map<String, Object> document) throws IOException, InterruptedException {
        HttpRequest.Builder request = HttpRequest.newBuilder(url)
                .timeout(timeout)
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofString(Json.write(document)));
        if (authorization != null) {
            request.header("Authorization", authorization);
        }
        HttpResponse<String> response = http.send(request.build(), BodyHandlers.ofString(StandardCharsets.UTF_8));
        Object answer;
        try {
            answer = new JsonParser(response.body()).document();
        } catch (IllegalArgumentException problem) {
            throw badAnswer(response.statusCode(), problem.getMessage());
        }
        if (!(answer instanceof Map<?, ?> fields)) {
            throw badAnswer(response.statusCode(), "the answer is no object");
        }
        if (response.statusCode() == 200) {
            return new Json(fields);
        }
        Json error = new Json(fields).object("error");
        OptionalLong retryMs = error.numberOrNone("retry_ms");
        Duration retryAfter = retryMs.isPresent() ? Duration.ofMillis(retryMs.getAsLong()) : null;
        throw new Refusal(error.text("code"), error.text("message"), retryAfter);
    }

    private static Refusal badAnswer(int status, String reason) {
        return new Refusal("bad_answer", "the server answered " + status + ", and not as Freezeframe does: " + reason, null);
    }

    /** A document of pairs of a name and a value; a null value is left out. */
    private static Map<String, Object> document(Object... pairs) {
        Map<String, Object> document = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            if (pairs[i + 1] != null) {
                document.put((String) pairs[i], pairs[i + 1]);
            }
        }
        return document;
    }

    private static List<String> listOrNull(String... names) {
        return names.length == 0 ? null : List.of(names);
    }

    /** The fields of an object. A field that is missing or of another type is an answer that is none. */
    private record Json(Map<?, ?> fields) {
        String text(String name) {
            return get(name, String.class);
        }

        long number(String name) {
            return get(name, Number.class).longValue();
        }

        OptionalLong numberOrNone(String name) {
            return fields.get(name) == null ? OptionalLong.empty() : OptionalLong.of(number(name));
        }

        boolean is(String name) {
            return get(name, Boolean.class);
        }

        Json object(String name) {
            return new Json(get(name, Map.class));
        }

        List<Json> list(String name) {
            List<Json> objects = new ArrayList<>();
            for (Object each : get(name, List.class)) {
                objects.add(new Json(cast(name, each, Map.class)));
            }
            return objects;
        }

        private <T> T get(String name, Class<T> type) {
            return cast(name, fields.get(name), type);
        }

        private static <T> T cast(String name, Object value, Class<T> type) {
            if (!type.isInstance(value)) {
                throw badAnswer(200, "the field " + name + " is " + value);
            }
            return type.cast(value);
        }

        static String write(Object value) {
            if (value instanceof Map<?, ?> map) {
                List<String> pairs = new ArrayList<>();
                map.forEach((name, field) -> pairs.add(write(name) + ":" + write(field)));
                return "{" + String.join(",", pairs) + "}";
            }
            if (value instanceof List<?> list) {
                return "[" + String.join(",", list.stream().map(Json::write).toList()) + "]";
            }
            return value instanceof String text ? quote(text) : String.valueOf(value);
        }

        private static String quote(String text) {
            StringBuilder quoted = new StringBuilder("\"");
            for (char c : text.toCharArray()) {
                if (c == '"' || c == '\\') {
                    quoted.append('\\').append(c);
                } else if (c < ' ') {
                    quoted.append(String.format("\\u%04x", (int) c));
                } else {
                    quoted.append(c);
                }
            }
            return quoted.append('"').toString();
        }
    }

    /** Reads JSON (RFC 8259) into maps, lists, strings, numbers, booleans and null. */
    private static final class JsonParser {
        private static final int DEPTH_MAX = 100;
        private static final Pattern NUMBER = Pattern.compile("-?(?:0|[1-9]\\d*)(\\.\\d+)?([eE][+-]?\\d+)?");

        private final String text;
        private int position;
        private int depth;

        JsonParser(String text) {
            this.text = text;
        }

        Object document() {
            Object value = value();
            if (next() != '\0') {
                throw unexpected();
            }
            return value;
        }

        private Object value() {
            char first = next();
            if (first == '{' || first == '[') {
                if (++depth > DEPTH_MAX) {
                    throw new IllegalArgumentException("the document is nested too deeply");
                }
                Object value = first == '{' ? object() : list();
                depth--;
                return value;
            }
            if (first == '"') {
                return string();
            }
            for (Map.Entry<String, Boolean> word : Map.of("true", true, "false", false).entrySet()) {
                if (takes(word.getKey())) {
                    return word.getValue();
                }
            }
            return takes("null") ? null : number();
        }

        private Map<String, Object> object() {
            Map<String, Object> fields = new LinkedHashMap<>();
            expect('{');
            if (next() != '}') {
                do {
                    if (next() != '"') {
                        throw unexpected();
                    }
                    String name = string();
                    expect(':');
                    fields.put(name, value());
                } while (takesComma());
            }
            expect('}');
            return fields;
        }

        private List<Object> list() {
            List<Object> values = new ArrayList<>();
            expect('[');
            if (next() != ']') {
                do {
                    values.add(value());
                } while (takesComma());
            }
            expect(']');
            return values;
        }

        private String string() {
            StringBuilder string = new StringBuilder();
            expect('"');
            while (true) {
                char c = take();
                if (c == '"') {
                    return string.toString();
                }
                string.append(c == '\\' ? escaped() : c);
            }
        }

        private char escaped() {
            char c = take();
            int index = "\"\\/bfnrt".indexOf(c);
            if (index >= 0) {
                return "\"\\/\b\f\n\r\t".charAt(index);
            }
            if (c != 'u' || position + 4 > text.length()) {
                throw unexpected();
            }
            position += 4;
            return (char) Integer.parseInt(text.substring(position - 4, position), 16);
        }

        private Number number() {
            var match = NUMBER.matcher(text).region(position, text.length());
            if (!match.lookingAt()) {
                throw unexpected();
            }
            position = match.end();
            boolean isWhole = match.group(1) == null && match.group(2) == null;
            return isWhole ? (Number) Long.parseLong(match.group()) : (Number) Double.parseDouble(match.group());
        }

        /** The next character that is no blank, and stays; a zero at the end. */
        private char next() {
            while (position < text.length() && " \t\r\n".indexOf(text.charAt(position)) >= 0) {
                position++;
            }
            return position < text.length() ? text.charAt(position) : '\0';
        }

        private char take() {
            if (position == text.length()) {
                throw unexpected();
            }
            return text.charAt(position++);
        }

        private void expect(char c) {
            if (next() != c) {
                throw unexpected();
            }
            position++;
        }

        private boolean takesComma() {
            boolean isComma = next() == ',';
            position += isComma ? 1 : 0;
            return isComma;
        }

        private boolean takes(String word) {
            boolean isThere = text.startsWith(word, position);
            position += isThere ? word.length() : 0;
            return isThere;
        }

        private IllegalArgumentException unexpected() {
            return new IllegalArgumentException("not JSON at character " + position);
        }
    }
}
