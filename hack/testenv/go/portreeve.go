// Package portreeve runs the controllers that a control plane of envtest lacks: garbage collection,
// the deletion of namespaces, TTLs of Jobs and more. It starts `portreeve testenv` as a child
// process, which ends with the test, and waits until the controllers have nothing left to do.
package portreeve

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// binaryVariable names the binary, as TEST_ASSET_ETCD names that of etcd for envtest.
	binaryVariable = "TEST_ASSET_PORTREEVE"
	// startLimit is how long the caches may take to sync.
	startLimit = 30 * time.Second
	// stopLimit is how long the process may take to end. It ends within a second by itself.
	stopLimit = 5 * time.Second
	// settleLimit is how long Settled waits.
	settleLimit = 30 * time.Second
	// maxTimeout is the longest timeout that /settled accepts.
	maxTimeout = 50 * time.Second
)

// Env is a running `portreeve testenv`.
type Env struct {
	command *exec.Cmd
	input   io.Closer
	output  *lastBytes
	folder  string
	ended   chan struct{}
	address string
	client  *http.Client
	stop    sync.Once
}

// Start runs the controllers against the control plane of cfg until the test has ended. It fails
// the test if they do not become ready. The flags are those of `portreeve testenv`, such as
// --controllers=*,-cronjob.
//
// Use Run where there is no test, such as in TestMain.
func Start(t testing.TB, cfg *rest.Config, flags ...string) *Env {
	t.Helper()
	env, err := Run(cfg, flags...)
	if err != nil {
		t.Fatalf("failed to start portreeve: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last log lines of portreeve:\n%s", env.output)
		}
		if err := env.Stop(); err != nil {
			t.Errorf("failed to stop portreeve: %v", err)
		}
	})
	return env
}

// Settled waits until the controllers have nothing left to do, and fails the test if that takes
// more than 30 s. All that follows from earlier requests of the test is then visible: dependents of
// deleted owners are gone, and so are deleted namespaces.
//
// What waits for a time (a schedule, a TTL) or for somebody else's finalizer does not count.
func (e *Env) Settled(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	if err := e.WaitUntilSettled(ctx); err != nil {
		t.Fatal(err)
	}
}

// Run is like Start without a test. Call Stop at the end; the process also ends with this one.
func Run(cfg *rest.Config, flags ...string) (*Env, error) {
	binary, err := findBinary()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "portreeve-testenv-")
	if err != nil {
		return nil, err
	}
	env := &Env{folder: folder, output: &lastBytes{}, ended: make(chan struct{})}
	if err := env.start(binary, cfg, flags); err != nil {
		return nil, errors.Join(err, env.Stop())
	}
	return env, nil
}

// WaitUntilSettled is like Settled without a test. It waits until ctx is done, but at most 50 s. At
// the deadline of ctx, the error lists what is left to do.
func (e *Env) WaitUntilSettled(ctx context.Context) error {
	timeout := maxTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(time.Millisecond, min(timeout, time.Until(deadline)))
	}
	// At the deadline, the response is awaited a little longer, because it says what is left.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout+stopLimit)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel()
		}
	})()
	query := url.Values{"timeout": {fmt.Sprintf("%dms", timeout.Milliseconds())}}
	request, err := http.NewRequestWithContext(asking, http.MethodGet, e.address+"/settled?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := e.client.Do(request)
	if err != nil {
		return fmt.Errorf("failed to ask portreeve what is left to do: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("failed to read what is left to do: %w", err)
	}
	switch response.StatusCode {
	case http.StatusNoContent:
		return nil
	case http.StatusRequestTimeout:
		return unsettled(timeout, body)
	default:
		return fmt.Errorf("portreeve answered %s at /settled: %s", response.Status, body)
	}
}

// Address returns the URL at which portreeve serves health, metrics, debug pages and /settled.
func (e *Env) Address() string { return e.address }

// Stop ends the controllers. Later calls do nothing.
func (e *Env) Stop() error {
	var err error
	e.stop.Do(func() {
		if e.command != nil && e.command.Process != nil {
			// The process ends when its standard input is closed.
			e.input.Close()
			select {
			case <-e.ended:
			case <-time.After(stopLimit):
				err = fmt.Errorf("portreeve was killed because it still ran %s after its standard input was closed", stopLimit)
				e.command.Process.Kill()
				<-e.ended
			}
		}
		err = errors.Join(err, os.RemoveAll(e.folder))
	})
	return err
}

func findBinary() (string, error) {
	if path := os.Getenv(binaryVariable); path != "" {
		binary, err := exec.LookPath(path)
		if err != nil {
			return "", fmt.Errorf("%s is set to %s, which is not an executable file: %w", binaryVariable, path, err)
		}
		return binary, nil
	}
	binary, err := exec.LookPath("portreeve")
	if err != nil {
		return "", fmt.Errorf("found no portreeve: set %s to its path, or put it on the PATH: %w", binaryVariable, err)
	}
	return binary, nil
}

func (e *Env) start(binary string, cfg *rest.Config, flags []string) error {
	kubeconfig := filepath.Join(e.folder, "kubeconfig")
	if err := writeKubeconfig(cfg, kubeconfig); err != nil {
		return fmt.Errorf("failed to write a kubeconfig: %w", err)
	}
	readyFile := filepath.Join(e.folder, "ready.json")
	command := exec.Command(binary, append([]string{"testenv", "--kubeconfig=" + kubeconfig, "--ready-file=" + readyFile}, flags...)...)
	input, err := command.StdinPipe()
	if err != nil {
		return err
	}
	// A pipe of our own, because Wait would close that of StdoutPipe before it is read.
	lines, stdout, err := os.Pipe()
	if err != nil {
		return err
	}
	defer lines.Close()
	command.Stdout, command.Stderr = stdout, e.output
	err = command.Start()
	stdout.Close()
	if err != nil {
		return fmt.Errorf("failed to run %s: %w", binary, err)
	}
	e.command, e.input = command, input
	go func() {
		command.Wait()
		close(e.ended)
	}()
	if err := e.waitUntilReady(lines); err != nil {
		return err
	}
	return e.readReadyFile(readyFile)
}

// waitUntilReady waits for the line `ready URL`.
func (e *Env) waitUntilReady(lines *os.File) error {
	if err := lines.SetReadDeadline(time.Now().Add(startLimit)); err != nil {
		return err
	}
	scanner := bufio.NewScanner(lines)
	for scanner.Scan() {
		if strings.HasPrefix(scanner.Text(), "ready ") {
			return nil
		}
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("portreeve was not ready within %s; its log ends with:\n%s", startLimit, e.output)
	}
	<-e.ended
	return fmt.Errorf("portreeve ended with %s before it was ready; its log:\n%s", e.command.ProcessState, e.output)
}

func (e *Env) readReadyFile(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("failed to read the ready file: %w", err)
	}
	var ready struct{ Address, Certificate string }
	if err := json.Unmarshal(content, &ready); err != nil {
		return fmt.Errorf("failed to parse the ready file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(ready.Certificate)) {
		return fmt.Errorf("the ready file has no certificate: %s", content)
	}
	e.address = ready.Address
	e.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	return nil
}

// unsettled returns an error that lists what is left.
func unsettled(timeout time.Duration, body []byte) error {
	var outstanding struct {
		Left, Waiting []string
		Omitted       int
	}
	if err := json.Unmarshal(body, &outstanding); err != nil {
		return fmt.Errorf("failed to parse what is left to do: %w", err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "the controllers have not settled within %s; left to do:", timeout.Round(time.Millisecond))
	for _, item := range outstanding.Left {
		fmt.Fprintf(&text, "\n  %s", item)
	}
	if len(outstanding.Waiting) > 0 {
		text.WriteString("\nwaiting for a time, or for somebody else's finalizer:")
	}
	for _, item := range outstanding.Waiting {
		fmt.Fprintf(&text, "\n  %s", item)
	}
	if outstanding.Omitted > 0 {
		fmt.Fprintf(&text, "\nand %d more", outstanding.Omitted)
	}
	return errors.New(text.String())
}
