// franz-go (kgo and kadm) against a broker: the scenario that all our client programs share.
//
//	go run . --bootstrap HOST:PORT --run ID [--moments]
//	go run . --cases FILE --run ID
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
	moments := flag.Bool("moments", false, "also read topics as of a moment")
	cases := flag.String("cases", "", "instead: log in as each line of this file says (security.sh)")
	flag.Parse()
	if (*bootstrap == "") == (*cases == "") || *run == "" {
		flag.Usage()
		os.Exit(2)
	}

	steps := &steps{}
	time.AfterFunc(180*time.Second, func() {
		fmt.Printf("FAILED %s: expected the run to end within 180 s, saw it here\n", steps.running)
		os.Exit(1)
	})
	if *cases != "" {
		accessSteps(steps, *cases, *run)
	} else {
		newScenario(*bootstrap, fromEnvironment(), steps, "t-go-"+*run).run(*moments)
	}
	if steps.failures > 0 {
		os.Exit(1)
	}
}
