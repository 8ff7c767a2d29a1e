package freezeframe.clients;

import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Stock Apache Kafka's Java client against a broker: the scenario that all our client programs share, then what only
 * this client can ask for.
 *
 * <pre>
 * --bootstrap HOST:PORT --run ID [--moments]
 * --cases FILE --run ID
 * --bootstrap HOST:PORT --run ID --load [--records N] [--size B] [--acks all|1] [--batch B] [--topic T] [--partitions N]
 * </pre>
 */
public final class Main {
    private static final List<String> SWITCHES = List.of("moments", "load");

    public static void main(String[] args) throws Exception {
        Map<String, String> options = parse(args);
        if (options.containsKey("bootstrap") == options.containsKey("cases") || !options.containsKey("run")) {
            System.err.println("usage: {--bootstrap HOST:PORT [--moments | --load …] | --cases FILE} --run ID");
            System.exit(2);
        }
        if (options.containsKey("load")) {
            ProducerLoad.run(options);
            return;
        }

        Steps steps = new Steps();
        steps.haltAfterSeconds(180);
        if (options.containsKey("cases")) {
            AccessSteps.run(steps, Path.of(options.get("cases")), options.get("run"));
            System.exit(steps.failures() == 0 ? 0 : 1);
        }
        try (Cluster cluster = new Cluster(options.get("bootstrap"))) {
            new Scenario(cluster, steps, "t-java-" + options.get("run")).run(options.containsKey("moments"));
            new GroupSteps(cluster, steps, options.get("run")).run();
            new TransactionAdminSteps(cluster, steps, options.get("run")).run();
            new AdminSteps(cluster, steps, options.get("run")).run();
            new CompactionSteps(cluster, steps, options.get("run")).run();
        }
        System.exit(steps.failures() == 0 ? 0 : 1);
    }

    private static Map<String, String> parse(String[] args) {
        Map<String, String> options = new HashMap<>();
        for (int i = 0; i < args.length; i++) {
            String name = args[i].replaceFirst("^--", "");
            options.put(name, SWITCHES.contains(name) || i + 1 == args.length ? "" : args[++i]);
        }
        return options;
    }
}
