// Webhooks for CronTabs on controller-runtime, written as the kubebuilder book recommends. One
// validates v1: it rejects schedules and time zones that cannot be used, and schedules that never
// run. The other one converts between v1 and v2. It keeps what v1 cannot express in one annotation.
//
//	webhook PORT FOLDER
//
// FOLDER contains tls.crt and tls.key.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"os"
	"reflect"
	"strconv"
	"time"

	"github.com/robfig/cron/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

func main() {
	flag.Parse()
	ctrl.SetLogger(zap.New())
	port, err := strconv.Atoi(flag.Arg(0))
	if err != nil {
		ctrl.Log.Error(err, "give the port and the folder of the certificate")
		os.Exit(1)
	}
	if err := run(port, flag.Arg(1)); err != nil {
		ctrl.Log.Error(err, "the manager ended")
		os.Exit(1)
	}
}

func run(port int, folder string) error {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(AddToScheme(scheme))
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host:    "127.0.0.1",
			Port:    port,
			CertDir: folder,
			// kubebuilder's projects disable HTTP/2 by default.
			TLSOpts: []func(*tls.Config){func(config *tls.Config) { config.NextProtos = []string{"http/1.1"} }},
		}),
	})
	if err != nil {
		return err
	}
	err = ctrl.NewWebhookManagedBy(manager, &CronTab{}).WithValidator(CronTabValidator{}).Complete()
	if err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}

// CronTabValidator validates schedules.
type CronTabValidator struct{}

// ValidateCreate validates a CronTab that is created.
func (CronTabValidator) ValidateCreate(_ context.Context, crontab *CronTab) (admission.Warnings, error) {
	return validate(crontab, time.Now())
}

// ValidateUpdate validates a CronTab whose schedule is changed.
func (CronTabValidator) ValidateUpdate(_ context.Context, old, crontab *CronTab) (admission.Warnings, error) {
	if reflect.DeepEqual(old.Spec, crontab.Spec) {
		return nil, nil
	}
	return validate(crontab, time.Now())
}

// ValidateDelete permits every deletion.
func (CronTabValidator) ValidateDelete(context.Context, *CronTab) (admission.Warnings, error) {
	return nil, nil
}

func validate(crontab *CronTab, now time.Time) (admission.Warnings, error) {
	var errs field.ErrorList
	path, spec := field.NewPath("spec"), crontab.Spec
	zone := time.UTC
	if spec.TimeZone != nil {
		loaded, err := time.LoadLocation(*spec.TimeZone)
		if err != nil {
			errs = append(errs, field.Invalid(path.Child("timeZone"), *spec.TimeZone, err.Error()))
		} else {
			zone = loaded
		}
	}
	schedule, err := cron.ParseStandard(spec.Schedule)
	switch {
	case err != nil:
		errs = append(errs, field.Invalid(path.Child("schedule"), spec.Schedule, err.Error()))
	case schedule.Next(now.In(zone)).IsZero():
		errs = append(errs, field.Invalid(path.Child("schedule"), spec.Schedule, "it never runs"))
	}
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(groupVersion.WithKind("CronTab").GroupKind(), crontab.Name, errs)
	}
	if spec.StartingDeadlineSeconds != nil && *spec.StartingDeadlineSeconds == 0 {
		return admission.Warnings{"spec.startingDeadlineSeconds: with 0, no run ever starts in time"}, nil
	}
	return nil, nil
}
