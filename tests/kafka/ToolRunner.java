import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main classes of Kafka's console tools one after the other in one JVM, since a JVM for each of them takes a second.
 *
 * <p>A request is a line of JSON on standard input, and so is its answer on standard output:
 * <pre>
 * {"main":"org.apache.kafka.tools.TopicCommand","args":["--list"],"input":"","seconds":20}
 *     {"status":0,"out":"…","err":"…"}
 * {"start":"reader","main":…}      the same in the background; the answer is {}
 * {"stop":"reader"}                runs its shutdown hooks, as SIGTERM would; the answer is that of its end
 * </pre>
 *
 * <p>What a tool prints is told apart by its thread: threads inherit the output of those that start them. What it prints after
 * its exit does not count.
 */
public class ToolRunner {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int NOT_ENDED = -1;
    private static final int HOOK_SECONDS_MAX = 10;
    private static final InheritableThreadLocal<ToolCall> CURRENT = new InheritableThreadLocal<>();

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        PrintStream errors = System.err;
        InputStream requests = System.in;
        // Before any class of a tool is loaded: Scala's println keeps the stream that it finds first.
        System.setOut(printStream(new CallOutput(call -> call.out, answers)));
        System.setErr(printStream(new CallOutput(call -> call.err, errors)));
        Exit.setExitProcedure((status, message) -> end(status));
        Exit.setHaltProcedure((status, message) -> end(status));
        Exit.setShutdownHookAdder((name, hook) -> CURRENT.get().hooks.add(hook));

        Map<String, ToolCall> background = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(requests, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode request = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode();
            if (request.has("stop")) {
                ToolCall call = background.remove(request.get("stop").asText());
                call.runHooks();
                call.awaitEnd(HOOK_SECONDS_MAX);
                call.describe(answer);
            } else {
                ToolCall call = new ToolCall(request);
                call.start();
                if (request.has("start")) {
                    background.put(request.get("start").asText(), call);
                } else {
                    call.awaitEnd(request.get("seconds").asInt());
                    call.runHooks();
                    call.describe(answer);
                }
            }
            byte[] bytes = (JSON.writeValueAsString(answer) + "\n").getBytes(StandardCharsets.UTF_8);
            answers.write(bytes, 0, bytes.length);
            answers.flush();
        }
        // Threads of tools that exited are still there.
        Runtime.getRuntime().halt(0);
    }

    private static void end(int status) {
        CURRENT.get().status.complete(status);
        throw new ToolExit();
    }

    private static PrintStream printStream(OutputStream output) {
        return new PrintStream(output, true, StandardCharsets.UTF_8);
    }

    /** Ends what the tool does, so that it closes what it opened. */
    private static final class ToolExit extends Error {
        private static final long serialVersionUID = 1;
    }

    private static final class ToolCall {
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        final ByteArrayOutputStream err = new ByteArrayOutputStream();
        final CompletableFuture<Integer> status = new CompletableFuture<>();
        final Queue<Runnable> hooks = new ConcurrentLinkedQueue<>();
        private final JsonNode request;
        private Thread thread;

        ToolCall(JsonNode request) {
            this.request = request;
        }

        void start() {
            System.setIn(new ByteArrayInputStream(request.path("input").asText().getBytes(StandardCharsets.UTF_8)));
            thread = startThread(this::run);
        }

        private void run() {
            try {
                String[] args = JSON.convertValue(request.get("args"), String[].class);
                Class.forName(request.get("main").asText()).getMethod("main", String[].class).invoke(null, (Object) args);
                status.complete(0);
            } catch (InvocationTargetException e) {
                if (e.getCause() instanceof ToolExit) {
                    return;
                }
                // As the JVM ends a program with an exception that nobody caught.
                System.err.println("Exception in thread \"main\" " + e.getCause());
                status.complete(1);
            } catch (ReflectiveOperationException e) {
                System.err.println(e);
                status.complete(127);
            }
        }

        void awaitEnd(int seconds) throws InterruptedException {
            thread.join(TimeUnit.SECONDS.toMillis(seconds));
            status.complete(NOT_ENDED);
        }

        void runHooks() throws InterruptedException {
            for (Runnable hook = hooks.poll(); hook != null; hook = hooks.poll()) {
                startThread(hook).join(TimeUnit.SECONDS.toMillis(HOOK_SECONDS_MAX));
            }
        }

        void describe(ObjectNode answer) {
            answer.put("status", status.join());
            answer.put("out", out.toString(StandardCharsets.UTF_8));
            answer.put("err", err.toString(StandardCharsets.UTF_8));
        }

        /** A daemon whose output is that of this call. */
        private Thread startThread(Runnable runnable) {
            Thread thread = new Thread(() -> {
                CURRENT.set(this);
                runnable.run();
            });
            thread.setDaemon(true);
            thread.start();
            return thread;
        }
    }

    /** Writes to the output of the call that the current thread belongs to; outside of calls, to the given stream. */
    private static final class CallOutput extends OutputStream {
        private final Function<ToolCall, OutputStream> part;
        private final OutputStream otherwise;

        CallOutput(Function<ToolCall, OutputStream> part, OutputStream otherwise) {
            this.part = part;
            this.otherwise = otherwise;
        }

        @Override
        public void write(int b) throws IOException {
            target().write(b);
        }

        @Override
        public void write(byte[] bytes, int start, int length) throws IOException {
            target().write(bytes, start, length);
        }

        private OutputStream target() {
            ToolCall call = CURRENT.get();
            if (call == null) {
                return otherwise;
            }
            return call.status.isDone() ? OutputStream.nullOutputStream() : part.apply(call);
        }
    }
}
