// go-zookeeper against a server.
//
//	go run . --connect HOST:PORT --run ID [--past]
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	connect := flag.String("connect", "", "HOST:PORT of the server")
	run := flag.String("run", "", "makes the names of znodes unique")
	past := flag.Bool("past", false, "also read znodes as of a moment")
	flag.Parse()
	if *connect == "" || *run == "" {
		flag.Usage()
		os.Exit(2)
	}
	steps := &steps{}
	time.AfterFunc(58*time.Second, func() {
		fmt.Printf("FAILED %s: expected the run to end within 58 s, saw it here\n", steps.running)
		os.Exit(1)
	})
	newScenario(*connect, "/clients-"+*run+"-go", steps).run(*past)
	if steps.failures > 0 {
		os.Exit(1)
	}
}
