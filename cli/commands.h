// The commands of cadre that do more than print text: one function for each verb (cli/verbs.cc),
// but those that only call a coordinator are with their rows in queries.cc and orders.cc.
//
// Each returns the exit code. RunCommandLine reports errors: UsageError, for an invalid
// command line, with the usage of the verb; all others with the exit code of their status.
// Thread-compatible; to be called on the main thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/console.h"
#include "cli/verb.h"

namespace cadre {

// The whole program: parses the arguments (without the name of the program), runs the verb, reports
// its error. Returns the exit code.
int RunCommandLine(std::span<const std::string> words, Console console);

// --- On this machine ---

// `cadre local`: starts a cluster for one run, follows the run, stops the cluster.
absl::StatusOr<int> RunLocal(const Invocation& in);
// `cadre probe`: measures this machine, or a cluster's, for one model and writes a cluster profile.
absl::StatusOr<int> ProbeCluster(const Invocation& in);
// `cadre measure-epochs`: how many epochs a model takes to reach a target accuracy, by number of
// workers, measured by emulation (lab/emulation.h).
absl::StatusOr<int> MeasureEpochs(const Invocation& in);

// --- Without a cluster ---

// `cadre import`: a run file and weights from a network in ONNX format; `cadre export`: the weights
// of a checkpoint under the names that they had there.
absl::StatusOr<int> ImportModel(const Invocation& in);
absl::StatusOr<int> ExportModel(const Invocation& in);

// `cadre certs`: a certificate authority for development, and certificates that it issues.
absl::StatusOr<int> ManageCertificates(const Invocation& in);

// `cadre plan`: the plan of a run for a number of workers, its predicted cost, and why it was
// chosen; with --placement, the placement of a graph of operators.
absl::StatusOr<int> ShowPlan(const Invocation& in);
absl::StatusOr<int> ShowPlacement(const Invocation& in);
absl::StatusOr<int> ShowFormula(const Invocation& in);
// `cadre replay`: computes the versions of a run again from the archives of its aggregators, and
// compares the digests.
absl::StatusOr<int> ReplayRun(const Invocation& in);

// --- Calls of a coordinator ---

// The verbs that read from a coordinator, and those that change something.
std::vector<Verb> QueryVerbs();
std::vector<Verb> OrderVerbs();
absl::StatusOr<int> ShowVersion(const Invocation& in);
// Submits a run and follows it to its end or, with --detach, prints its id. Data files are not
// checked, because they are on the machines of the workers.
absl::StatusOr<int> SubmitRun(const Invocation& in);
// Records some steps of a group and writes the trace atomically.
absl::StatusOr<int> TraceRun(const Invocation& in);

}  // namespace cadre
