// sarama against a broker: the transactions of the scenario that all our client programs share.
//
//	go run . --bootstrap HOST:PORT --run ID [--moments]
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	bootstrap := flag.String("bootstrap", "", "HOST:PORT of the broker")
	run := flag.String("run", "", "makes the names of topics and groups unique")
	flag.Bool("moments", false, "taken as the other programs take it; there is nothing of it here")
	flag.Parse()
	if *bootstrap == "" || *run == "" {
		flag.Usage()
		os.Exit(2)
	}

	steps := &steps{}
	time.AfterFunc(180*time.Second, func() {
		fmt.Printf("FAILED %s: expected the run to end within 180 s, saw it here\n", steps.running)
		os.Exit(1)
	})
	scenario := &scenario{bootstrap: *bootstrap, topic: "t-sarama-" + *run}
	steps.step("a create-topic", scenario.connectAndCreate)
	steps.step("h transaction-commit-and-abort", scenario.commitAndAbort)
	steps.step("h consume-transform-produce", scenario.consumeTransformProduce)
	steps.step("h fencing", scenario.fencing)
	steps.step("g delete-topics", scenario.deleteAll)
	if steps.failures > 0 {
		os.Exit(1)
	}
}
