// A candidate for a Lease that runs client-go's elector, for tests in which it and Portreeve take
// over the same Lease from each other.
//
// It only holds the Lease, and writes a line to stderr for each transition: "started leading",
// "stopped leading", "new leader <identity>". It exits with 0 on SIGTERM and SIGINT, and with 1
// when it loses the Lease.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

type options struct {
	kubeconfig, namespace, name, identity     string
	leaseDuration, renewDeadline, retryPeriod time.Duration
	releaseOnCancel                           bool
}

func main() {
	var o options
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "the kubeconfig file")
	flag.StringVar(&o.namespace, "namespace", "kube-system", "the Lease's namespace")
	flag.StringVar(&o.name, "name", "portreeve", "the Lease's name")
	flag.StringVar(&o.identity, "identity", "", "the candidate's identity in the Lease")
	flag.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "how long others wait after the last renewal")
	flag.DurationVar(&o.renewDeadline, "renew-deadline", 10*time.Second, "how long renewals may fail")
	flag.DurationVar(&o.retryPeriod, "retry-period", 2*time.Second, "the pause between two attempts")
	flag.BoolVar(&o.releaseOnCancel, "release-on-cancel", true, "release the Lease at the end")
	flag.Parse()

	lost, err := hold(o)
	if err != nil {
		say("error: %v", err)
		os.Exit(1)
	}
	if lost {
		os.Exit(1)
	}
}

// hold runs the elector until a signal arrives or the candidate loses the Lease, and returns
// whether it lost the Lease.
func hold(o options) (lost bool, err error) {
	ctx, stopNotify := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stopNotify()
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return false, fmt.Errorf("read the kubeconfig: %w", err)
	}
	client, err := coordination.NewForConfig(config)
	if err != nil {
		return false, fmt.Errorf("build a client: %w", err)
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: o.namespace, Name: o.name},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.identity},
		},
		LeaseDuration:   o.leaseDuration,
		RenewDeadline:   o.renewDeadline,
		RetryPeriod:     o.retryPeriod,
		ReleaseOnCancel: o.releaseOnCancel,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { say("started leading") },
			// client-go calls this also for a candidate that never led.
			OnStoppedLeading: func() { say("stopped leading") },
			OnNewLeader:      func(identity string) { say("new leader %s", identity) },
		},
	})
	if err != nil {
		return false, fmt.Errorf("set up the elector: %w", err)
	}
	elector.Run(ctx)
	return ctx.Err() == nil, nil
}

func say(format string, values ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
}
