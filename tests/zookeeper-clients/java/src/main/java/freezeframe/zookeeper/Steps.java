package freezeframe.zookeeper;

import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.ExecutionException;

/** Runs named steps and prints one line for each; a step that fails does not stop the next. */
final class Steps {
    static final Duration PATIENCE = Duration.ofSeconds(10);

    private volatile String running = "start";
    private int failures = 0;

    interface Body {
        void run() throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    /** What a step expected and did not see. */
    static final class Mismatch extends RuntimeException {
        Mismatch(String message) {
            super(message);
        }
    }

    void step(String name, Body body) {
        running = name;
        try {
            body.run();
            System.out.println("ok " + name);
        } catch (Exception | AssertionError problem) {
            failures++;
            Throwable cause = problem instanceof ExecutionException ? problem.getCause() : problem;
            String seen = cause instanceof Mismatch ? cause.getMessage() : "expected no exception, saw " + cause;
            System.out.println("FAILED " + name + ": " + seen.replace('\n', ' '));
        }
    }

    int failures() {
        return failures;
    }

    /** The bound on the whole run: a client that hangs inside one call is a failure too. */
    void haltAfterSeconds(long seconds) {
        Thread watchdog = new Thread(() -> {
            try {
                Thread.sleep(seconds * 1000);
            } catch (InterruptedException stopped) {
                return;
            }
            System.out.println("FAILED " + running + ": expected the run to end within " + seconds + " s, saw it here");
            System.out.flush();
            Runtime.getRuntime().halt(1);
        });
        watchdog.setDaemon(true);
        watchdog.start();
    }

    static void equal(String what, Object expected, Object seen) {
        if (!Objects.equals(expected, seen)) {
            throw new Mismatch("expected " + what + " " + expected + ", saw " + seen);
        }
    }

    static void holds(String expected, boolean seen, Object shown) {
        if (!seen) {
            throw new Mismatch("expected " + expected + ", saw " + shown);
        }
    }

    /** Asks until it holds. The condition itself waits (a poll, a request); the pause only spares the server. */
    static void await(String expected, Condition condition) throws Exception {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (!condition.holds()) {
            if (System.nanoTime() > deadline) {
                throw new Mismatch("expected " + expected + ", saw none of it within " + PATIENCE.toSeconds() + " s");
            }
            Thread.sleep(10);
        }
    }
}
