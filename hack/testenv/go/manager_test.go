package portreeve

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// managerVariable names a kube-controller-manager, which the tests then run in the place of
	// portreeve. Only the bench sets it.
	managerVariable = "TEST_ASSET_KUBE_CONTROLLER_MANAGER"
	// managerControllers are those of `portreeve testenv`.
	managerControllers = "namespace-controller,serviceaccount-controller,root-ca-certificate-publisher-controller," +
		"clusterrole-aggregation-controller,persistentvolumeclaim-protection-controller," +
		"persistentvolume-protection-controller,garbage-collector-controller,cronjob-controller," +
		"ttl-after-finished-controller"
	// pollLimit is how long a test polls for what kube-controller-manager has to do, because it does
	// not tell when it has nothing left to do.
	pollLimit    = time.Minute
	pollInterval = 20 * time.Millisecond
)

// runManager starts kube-controller-manager, and returns a function that ends it.
func runManager(path string, cfg *rest.Config) (func() error, error) {
	folder, err := os.MkdirTemp("", "portreeve-testenv-")
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(folder, "kubeconfig")
	if err := writeKubeconfig(cfg, kubeconfig); err != nil {
		return nil, fmt.Errorf("failed to write a kubeconfig: %w", err)
	}
	command := exec.Command(path, "--kubeconfig="+kubeconfig, "--controllers="+managerControllers,
		"--leader-elect=false", "--secure-port=0", "--kube-api-qps=5000", "--kube-api-burst=10000")
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("failed to run %s: %w", path, err)
	}
	return func() error {
		command.Process.Kill()
		command.Wait()
		return os.RemoveAll(folder)
	}, nil
}

// eventually reports whether what is awaited has happened. Beside portreeve, which has settled, it
// asks once.
func eventually(happened func() bool) bool {
	deadline := time.Now().Add(pollLimit)
	for !happened() {
		if shared != nil || time.Now().After(deadline) {
			return false
		}
		time.Sleep(pollInterval)
	}
	return true
}
