// Tables show at most kMaxRows rows, since graphs of thousands of operators are common; JSON is
// always complete. The chart draws each device as one line and scales time to kChartColumns
// columns; operators that would be narrower than a column are omitted.
#include "cli/placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/spec_file.h"
#include "cli/table.h"
#include "lab/placement_program.h"
#include "plan/placement/placement_problem.h"
#include "tensor/mesh.h"

namespace cadre {
namespace {

constexpr int kChartColumns = 72;
// Maximum number of rows of a table, about two screens.
constexpr size_t kMaxRows = 60;

std::string Seconds(double seconds) { return absl::StrFormat("%.6g s", seconds); }
std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

const std::string& DeviceName(const PlacementReport& report, int device) {
  return report.problem.devices[device].name;
}
int DeviceOf(const PlacementReport& report, int op) { return report.placement.schedule.device[op]; }
double StartOf(const PlacementReport& report, int op) {
  return report.placement.schedule.start[op];
}
double SecondsOf(const PlacementReport& report, int op) {
  return report.problem.Seconds(op, DeviceOf(report, op));
}

// The makespan, the speed-up over the best single device, and how close the placement is to the
// optimum.
std::string SummaryText(const PlacementReport& report) {
  const PlacedGraph& placement = report.placement;
  std::string text = absl::StrFormat(
      "makespan %s, %.4g times as fast as all on %s%s: %s\n", Seconds(placement.schedule.makespan),
      placement.speedup(), DeviceName(report, placement.serial_device),
      placement.serial_fits ? "" : " (which lacks the memory)", Seconds(placement.serial_seconds));
  if (placement.method == PlacementMethod::kExact) {
    return absl::StrCat(text, "exact: no placement takes less\n");
  }
  return absl::StrCat(text, MethodName(placement.method), ": no placement takes less than ",
                      Seconds(placement.lower_bound), ", a gap of ", Percent(placement.gap()),
                      "\n");
}

// One row per device. A device is busy while it executes operators; transfers are not counted.
std::string DevicesTable(const PlacementReport& report) {
  const PlacementProblem& problem = report.problem;
  std::vector<int> operators(problem.devices.size(), 0);
  std::vector<double> busy(problem.devices.size(), 0);
  for (int i = 0; i < problem.size(); ++i) {
    ++operators[DeviceOf(report, i)];
    busy[DeviceOf(report, i)] += SecondsOf(report, i);
  }
  const std::vector<int64_t> memory = MemoryOf(problem, report.placement.schedule.device);
  const double makespan = report.placement.schedule.makespan;
  Table table({"DEVICE", "OPERATORS", "BUSY", "MEMORY", "LIMIT"});
  for (size_t d = 0; d < problem.devices.size(); ++d) {
    const int64_t limit = problem.devices[d].memory_bytes;
    table.AddRow({problem.devices[d].name, absl::StrCat(operators[d]),
                  Percent(makespan > 0 ? busy[d] / makespan : 0), FormatBytes(memory[d]),
                  limit > 0 ? FormatBytes(limit) : "-"});
  }
  return table.Text();
}

// States how many of `all` rows a table leaves out; "" if it has all.
std::string MoreText(size_t all) {
  return all > kMaxRows ? absl::StrCat("... and ", all - kMaxRows, " more; -o json has all\n") : "";
}

// One row per operator, in the order of their starts.
std::string OperatorsTable(const PlacementReport& report) {
  std::vector<int> ops(report.problem.ops.size());
  std::iota(ops.begin(), ops.end(), 0);
  std::stable_sort(ops.begin(), ops.end(),
                   [&](int a, int b) { return StartOf(report, a) < StartOf(report, b); });
  Table table({"OPERATOR", "DEVICE", "START", "END"});
  for (size_t row = 0; row < std::min(ops.size(), kMaxRows); ++row) {
    const int i = ops[row];
    const double start = StartOf(report, i);
    table.AddRow({report.problem.op(i).name, DeviceName(report, DeviceOf(report, i)),
                  Seconds(start), Seconds(start + SecondsOf(report, i))});
  }
  return table.Text() + MoreText(ops.size());
}

// The names of the links that a transfer passes, in order.
std::vector<std::string> LinksOf(const PlacementProblem& problem,
                                 const OperatorTransfer& transfer) {
  std::vector<std::string> links;
  for (const int l : transfer.links) links.push_back(problem.link_names[l]);
  return links;
}

// One row per tensor that moves to another device.
std::string TransfersTable(const PlacementReport& report) {
  const PlacementProblem& problem = report.problem;
  const std::vector<OperatorTransfer>& transfers = report.placement.transfers;
  if (transfers.empty()) return "no transfers between devices\n";
  Table table({"TENSOR", "BYTES", "SENT", "ARRIVES", "LINKS"});
  for (size_t t = 0; t < std::min(transfers.size(), kMaxRows); ++t) {
    const OperatorTransfer& transfer = transfers[t];
    const PlacementProblem::Edge& edge = problem.edge(transfer.edge);
    table.AddRow({absl::StrCat(problem.op(edge.from).name, " -> ", problem.op(edge.to).name),
                  FormatCount(edge.bytes), Seconds(transfer.start),
                  Seconds(transfer.start + transfer.seconds),
                  absl::StrJoin(LinksOf(problem, transfer), ", ")});
  }
  return table.Text() + MoreText(transfers.size());
}

// The flags with which a run whose layers are the operators executes the placement: rank i is
// device i. The devices need not follow one another as stages do, so the axis is another one.
std::string MeshFlag(const PlacementReport& report) {
  return absl::StrCat(kModelAxis, "=", report.problem.devices.size());
}
std::string LayerFlag(const PlacementReport& report) {
  std::vector<std::string> pins;
  for (int i = 0; i < report.problem.size(); ++i) {
    pins.push_back(
        absl::StrCat(report.problem.op(i).name, "=", kModelAxis, "@", DeviceOf(report, i)));
  }
  return absl::StrJoin(pins, ",");
}

std::string FlagsText(const PlacementReport& report) {
  if (report.problem.ops.size() > kMaxRows) return "";
  return absl::StrCat("\nA run whose layers have the names of the operators executes this with\n",
                      "--mesh ", MeshFlag(report), " --layer ", LayerFlag(report), "\n");
}

}  // namespace

std::string ToText(const PlacementReport& report) {
  return absl::StrCat(SummaryText(report), "\n",
                      PlacementChart(report.problem, report.placement.schedule, kChartColumns),
                      "\n", DevicesTable(report), "\n", OperatorsTable(report), "\n",
                      TransfersTable(report), FlagsText(report));
}

Json ToJson(const PlacementReport& report) {
  const auto& [problem, placement] = report;
  Json devices = Json::object();
  Json starts = Json::object();
  for (int i = 0; i < problem.size(); ++i) {
    devices[problem.op(i).name] = DeviceName(report, DeviceOf(report, i));
    starts[problem.op(i).name] = StartOf(report, i);
  }
  Json memory = Json::object();
  const std::vector<int64_t> bytes = MemoryOf(problem, placement.schedule.device);
  for (size_t d = 0; d < bytes.size(); ++d) memory[problem.devices[d].name] = bytes[d];
  Json transfers = Json::array();
  for (const OperatorTransfer& transfer : placement.transfers) {
    const PlacementProblem::Edge& edge = problem.edge(transfer.edge);
    transfers.push_back({{"from", problem.op(edge.from).name},
                         {"to", problem.op(edge.to).name},
                         {"bytes", edge.bytes},
                         {"start", transfer.start},
                         {"seconds", transfer.seconds},
                         {"links", LinksOf(problem, transfer)}});
  }
  return {{"makespan", placement.schedule.makespan},
          {"lower_bound", placement.lower_bound},
          {"gap", placement.gap()},
          {"method", MethodName(placement.method)},
          {"speedup", placement.speedup()},
          {"serial_seconds", placement.serial_seconds},
          {"serial_device", DeviceName(report, placement.serial_device)},
          {"serial_fits", placement.serial_fits},
          {"list_makespan", placement.list_makespan},
          {"placement", devices},
          {"mesh", MeshFlag(report)},
          {"layer", LayerFlag(report)},
          {"starts", starts},
          {"transfers", transfers},
          {"memory_bytes", memory}};
}

std::string PlacementChart(const PlacementProblem& problem, const OperatorSchedule& schedule,
                           int columns) {
  if (schedule.makespan <= 0) return "";
  size_t widest = 0;
  for (const auto& device : problem.devices) widest = std::max(widest, Width(device.name));
  std::vector<std::string> lines(problem.devices.size(), std::string(columns, '.'));
  // Both ends of a box are rounded in the same way, so boxes of successive operators never overlap.
  const auto column = [&](double seconds) -> size_t {
    return std::lround(seconds / schedule.makespan * columns);
  };
  for (int i = 0; i < problem.size(); ++i) {
    const int device = schedule.device[i];
    const size_t begin = column(schedule.start[i]);
    const size_t width = column(schedule.start[i] + problem.Seconds(i, device)) - begin;
    if (width == 0) continue;
    std::string box = "|";
    if (width > 1) {
      // A name is cut by bytes, so only ASCII names, whose bytes are columns, can be cut.
      const std::string& name = problem.op(i).name;
      const bool ascii = Width(name) == name.size();
      const std::string label = ascii ? name.substr(0, width - 2) : std::string();
      box = absl::StrCat("[", label, std::string(width - 2 - label.size(), '='), "]");
    }
    lines[device].replace(begin, width, box);
  }
  std::string chart;
  for (size_t d = 0; d < std::min(lines.size(), kMaxRows); ++d) {
    const std::string& name = problem.devices[d].name;
    absl::StrAppend(&chart, name, std::string(widest - Width(name) + 2, ' '), lines[d], "\n");
  }
  return chart;
}

absl::StatusOr<int> ShowPlacement(const Invocation& in) {
  // Both kinds of planning share a verb, so the flags of the other kind are known to the parser.
  for (const std::string& flag : in.line.given()) {
    if (flag == "placement" || flag == "solver-seconds") continue;
    return UsageError(absl::StrCat("--", flag, " has no effect with --placement"));
  }
  if (!in.line.arguments().empty()) {
    return UsageError(absl::StrCat("unexpected argument '", in.line.argument(), "'"));
  }
  const auto path = in.line.Value<std::string>("placement");
  if (path.empty()) {
    return UsageError("--placement requires the file of an operator graph");
  }
  absl::StatusOr<PlacementProblem> problem = ReadOperatorGraph(path);
  // Each line of the message names file, line and column.
  if (absl::IsInvalidArgument(problem.status())) return FailSpec(in.console, problem.status());
  CADRE_RETURN_IF_ERROR(problem.status());
  const PlacementProgram program({.seconds = in.line.Value<double>("solver-seconds")});
  absl::StatusOr<PlacedGraph> placement = PlaceGraph(*problem, {.solver = &program});
  if (!placement.ok()) return Fail(in.console, Annotate(placement.status(), path));
  const PlacementReport report{*std::move(problem), *std::move(placement)};
  Print(ToJson(report), ToText(report), in.global, in.console);
  return kExitOk;
}

}  // namespace cadre
