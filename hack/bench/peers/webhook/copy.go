package main

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// These functions are written by hand, as controller-gen would generate them.

// DeepCopyObject copies a CronTab.
func (in *CronTab) DeepCopyObject() runtime.Object {
	out := new(CronTab)
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.JobTemplate.DeepCopyInto(&out.Spec.JobTemplate)
	out.Spec.TimeZone = copied(in.Spec.TimeZone)
	out.Spec.Suspend = copied(in.Spec.Suspend)
	out.Spec.StartingDeadlineSeconds = copied(in.Spec.StartingDeadlineSeconds)
	out.Spec.SuccessfulJobsHistoryLimit = copied(in.Spec.SuccessfulJobsHistoryLimit)
	out.Spec.FailedJobsHistoryLimit = copied(in.Spec.FailedJobsHistoryLimit)
	out.Spec.BackoffLimit = copied(in.Spec.BackoffLimit)
	out.Spec.ActiveDeadlineSeconds = copied(in.Spec.ActiveDeadlineSeconds)
	out.Spec.TTLSecondsAfterFinished = copied(in.Spec.TTLSecondsAfterFinished)
	out.Status.CommonStatus = in.Status.CommonStatus.copied()
	out.Status.ScheduleTimes = in.Status.ScheduleTimes.copied()
	return out
}

// DeepCopyObject copies a CronTab.
func (in *CronTabV2) DeepCopyObject() runtime.Object {
	out := new(CronTabV2)
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.Template.DeepCopyInto(&out.Spec.Template)
	out.Spec.Suspend = copied(in.Spec.Suspend)
	out.Spec.Schedules = copiedAll(in.Spec.Schedules, func(in Schedule) Schedule {
		in.TimeZone, in.Suspend = copied(in.TimeZone), copied(in.Suspend)
		return in
	})
	policy := &out.Spec.RunPolicy
	policy.StartingDeadlineSeconds = copied(policy.StartingDeadlineSeconds)
	policy.SuccessfulJobsHistoryLimit = copied(policy.SuccessfulJobsHistoryLimit)
	policy.FailedJobsHistoryLimit = copied(policy.FailedJobsHistoryLimit)
	out.Status = in.Status.copied()
	return out
}

func (in CommonStatus) copied() CommonStatus {
	in.Schedules = copiedAll(in.Schedules, func(in ScheduleStatus) ScheduleStatus {
		in.ScheduleTimes = in.ScheduleTimes.copied()
		in.Active, in.Suspended = copied(in.Active), copied(in.Suspended)
		return in
	})
	in.Active = copiedAll(in.Active, func(in corev1.ObjectReference) corev1.ObjectReference { return in })
	in.ActiveCount = copied(in.ActiveCount)
	in.LastSuccessfulTime = in.LastSuccessfulTime.DeepCopy()
	in.LastFailureTime = in.LastFailureTime.DeepCopy()
	in.LastRunNow = copied(in.LastRunNow)
	in.ObservedGeneration = copied(in.ObservedGeneration)
	in.Conditions = copiedAll(in.Conditions, func(in metav1.Condition) metav1.Condition { return *in.DeepCopy() })
	return in
}

func (in ScheduleTimes) copied() ScheduleTimes {
	in.LastScheduleTime = in.LastScheduleTime.DeepCopy()
	in.NextScheduleTime = in.NextScheduleTime.DeepCopy()
	in.LastMissedTime = in.LastMissedTime.DeepCopy()
	in.MissedRuns = copied(in.MissedRuns)
	in.ObservedSchedule = copied(in.ObservedSchedule)
	in.ScheduledSince = in.ScheduledSince.DeepCopy()
	return in
}

func copied[T any](value *T) *T {
	if value == nil {
		return nil
	}
	out := *value
	return &out
}

func copiedAll[T any](values []T, copied func(T) T) []T {
	if values == nil {
		return nil
	}
	out := make([]T, len(values))
	for i, value := range values {
		out[i] = copied(value)
	}
	return out
}
