#include "cli/placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/json.h"
#include "cli/table.h"
#include "coordinator/placement/graph_file.h"

namespace cadre {
namespace {

constexpr double kMostSolverSeconds = 86'400;
constexpr int kChartColumns = 72;
// What a person reads; -o json has all.
constexpr int kMostRows = 60;

std::string Seconds(double seconds) { return absl::StrFormat("%.6g s", seconds); }
std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

const std::string& DeviceName(const PlacementProblem& problem, int device) {
  return problem.devices[static_cast<size_t>(device)].name;
}

int DeviceOf(const PlacedGraph& placement, int op) {
  return placement.schedule.device[static_cast<size_t>(op)];
}

double StartOf(const PlacedGraph& placement, int op) {
  return placement.schedule.start[static_cast<size_t>(op)];
}

double SecondsOf(const PlacementProblem& problem, const PlacedGraph& placement, int op) {
  return problem.Seconds(op, DeviceOf(placement, op));
}

// --- for people ---

std::string Answer(const PlacementProblem& problem, const PlacedGraph& placement) {
  std::string text = absl::StrFormat("makespan %s; all on %s%s: %s, so %.4g times as fast\n",
                                     Seconds(placement.schedule.makespan),
                                     DeviceName(problem, placement.serial_device),
                                     placement.serial_fits ? "" : ", had it the memory",
                                     Seconds(placement.serial_seconds), placement.speedup());
  if (placement.method == PlacementMethod::kExact) {
    return absl::StrCat(text, "exact: no placement takes less\n");
  }
  return absl::StrCat(text, MethodName(placement.method), ": no placement takes less than ",
                      Seconds(placement.lower_bound), ", a gap of ", Percent(placement.gap()),
                      "\n");
}

std::string DevicesTable(const PlacementProblem& problem, const PlacedGraph& placement) {
  const auto devices = problem.devices.size();
  std::vector<int> operators(devices, 0);
  std::vector<double> busy(devices, 0);
  for (int i = 0; i < problem.size(); ++i) {
    const auto on = static_cast<size_t>(DeviceOf(placement, i));
    ++operators[on];
    busy[on] += SecondsOf(problem, placement, i);
  }
  const std::vector<int64_t> memory = MemoryOf(problem, placement.schedule.device);
  Table table({"DEVICE", "OPERATORS", "BUSY", "MEMORY", "OF"});
  for (size_t d = 0; d < devices; ++d) {
    const double makespan = placement.schedule.makespan;
    const int64_t room = problem.devices[d].memory_bytes;
    table.AddRow({problem.devices[d].name, absl::StrCat(operators[d]),
                  Percent(makespan > 0 ? busy[d] / makespan : 0),
                  FormatBytes(static_cast<uint64_t>(memory[d])),
                  room > 0 ? FormatBytes(static_cast<uint64_t>(room)) : "no limit"});
  }
  return table.Text();
}

// By start, then as the graph names them.
std::vector<int> ByStart(const PlacementProblem& problem, const PlacedGraph& placement) {
  std::vector<int> ops(problem.ops.size());
  std::iota(ops.begin(), ops.end(), 0);
  std::stable_sort(ops.begin(), ops.end(),
                   [&](int a, int b) { return StartOf(placement, a) < StartOf(placement, b); });
  return ops;
}

std::string More(size_t all) {
  return all > kMostRows ? absl::StrCat("... and ", all - kMostRows, " more; -o json has all\n")
                         : "";
}

std::string OperatorsTable(const PlacementProblem& problem, const PlacedGraph& placement) {
  Table table({"OPERATOR", "DEVICE", "START", "END"});
  std::vector<int> ops = ByStart(problem, placement);
  ops.resize(std::min<size_t>(ops.size(), kMostRows));
  for (const int i : ops) {
    const double start = StartOf(placement, i);
    table.AddRow({problem.op(i).name, DeviceName(problem, DeviceOf(placement, i)), Seconds(start),
                  Seconds(start + SecondsOf(problem, placement, i))});
  }
  return table.Text() + More(problem.ops.size());
}

std::string LinksOf(const PlacementProblem& problem, const Transfer& transfer) {
  return absl::StrJoin(transfer.links, ", ", [&](std::string* out, int l) {
    absl::StrAppend(out, problem.link_names[static_cast<size_t>(l)]);
  });
}

std::string TransfersTable(const PlacementProblem& problem, const PlacedGraph& placement) {
  if (placement.transfers.empty()) return "nothing leaves its device\n";
  Table table({"TENSOR", "BYTES", "LEAVES", "ARRIVES", "OVER"});
  const size_t shown = std::min<size_t>(placement.transfers.size(), kMostRows);
  for (size_t t = 0; t < shown; ++t) {
    const Transfer& transfer = placement.transfers[t];
    const PlacementProblem::Edge& edge = problem.edge(transfer.edge);
    table.AddRow({absl::StrCat(problem.op(edge.from).name, " -> ", problem.op(edge.to).name),
                  FormatCount(static_cast<uint64_t>(edge.bytes)), Seconds(transfer.start),
                  Seconds(transfer.start + transfer.seconds), LinksOf(problem, transfer)});
  }
  return table.Text() + More(placement.transfers.size());
}

std::string PlacementText(const PlacementProblem& problem, const PlacedGraph& placement) {
  return absl::StrCat(Answer(problem, placement), "\n",
                      PlacementChart(problem, placement.schedule, kChartColumns), "\n",
                      DevicesTable(problem, placement), "\n", OperatorsTable(problem, placement),
                      "\n", TransfersTable(problem, placement));
}

// --- for scripts ---

std::string TransferJson(const PlacementProblem& problem, const Transfer& transfer) {
  const PlacementProblem::Edge& edge = problem.edge(transfer.edge);
  std::vector<std::string> links;
  for (const int l : transfer.links) {
    links.push_back(JsonString(problem.link_names[static_cast<size_t>(l)]));
  }
  return JsonObject()
      .Add("from", problem.op(edge.from).name)
      .Add("to", problem.op(edge.to).name)
      .Add("bytes", static_cast<uint64_t>(edge.bytes))
      .Add("start", transfer.start)
      .Add("seconds", transfer.seconds)
      .AddRaw("links", absl::StrCat("[", absl::StrJoin(links, ","), "]"))
      .Text();
}

}  // namespace

absl::Status CheckPlacementOptions(const PlacementOptions& options) {
  if (options.graph.empty()) {
    return absl::InvalidArgumentError("--placement is empty: which operator graph?");
  }
  if (options.solver_seconds > 0 && options.solver_seconds <= kMostSolverSeconds) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--solver_seconds must be above 0, at most ",
                                                 kMostSolverSeconds, ", not ",
                                                 options.solver_seconds));
}

int ShowPlacement(const GlobalOptions& global, const PlacementOptions& options,
                  const Console& console) {
  const absl::StatusOr<PlacementProblem> problem = ReadOperatorGraph(options.graph);
  if (absl::IsInvalidArgument(problem.status())) {
    // Each line says where already.
    console.err << problem.status().message() << std::endl;
    return kExitFailure;
  }
  if (!problem.ok()) return Fail(console, problem.status());
  const absl::StatusOr<PlacedGraph> placement =
      Place(*problem, {.solver_seconds = options.solver_seconds});
  if (!placement.ok()) return Fail(console, Annotate(placement.status(), options.graph));
  if (global.format == OutputFormat::kJson) {
    console.out << Indent(PlacementJson(*problem, *placement)) << std::endl;
  } else {
    console.out << PlacementText(*problem, *placement) << std::flush;
  }
  return kExitOk;
}

std::string PlacementChart(const PlacementProblem& problem, const Schedule& schedule, int columns) {
  if (schedule.makespan <= 0) return "";
  size_t widest = 0;
  for (const auto& device : problem.devices) widest = std::max(widest, Width(device.name));
  std::vector<std::string> lines(problem.devices.size(),
                                 std::string(static_cast<size_t>(columns), '.'));
  const auto column = [&](double seconds) {
    return static_cast<size_t>(std::lround(seconds / schedule.makespan * columns));
  };
  for (int i = 0; i < problem.size(); ++i) {
    const int on = schedule.device[static_cast<size_t>(i)];
    const double start = schedule.start[static_cast<size_t>(i)];
    const size_t begin = column(start);
    const size_t width = column(start + problem.Seconds(i, on)) - begin;
    if (width == 0) continue;
    std::string box = "|";
    if (width > 1) {
      // Names of letters beyond ASCII are as wide as they are long only there.
      const std::string& name = problem.op(i).name;
      const bool plain = Width(name) == name.size();
      const std::string inside = plain ? name.substr(0, width - 2) : std::string();
      box = absl::StrCat("[", inside, std::string(width - 2 - inside.size(), '='), "]");
    }
    lines[static_cast<size_t>(on)].replace(begin, width, box);
  }
  std::string chart;
  for (size_t d = 0; d < std::min<size_t>(lines.size(), kMostRows); ++d) {
    const std::string& name = problem.devices[d].name;
    absl::StrAppend(&chart, name, std::string(widest - Width(name) + 2, ' '), lines[d], "\n");
  }
  return chart;
}

std::string PlacementJson(const PlacementProblem& problem, const PlacedGraph& placement) {
  JsonObject devices;
  JsonObject starts;
  JsonObject memory;
  for (int i = 0; i < problem.size(); ++i) {
    devices.Add(problem.op(i).name, DeviceName(problem, DeviceOf(placement, i)));
    starts.Add(problem.op(i).name, StartOf(placement, i));
  }
  const std::vector<int64_t> bytes = MemoryOf(problem, placement.schedule.device);
  for (size_t d = 0; d < bytes.size(); ++d) {
    memory.Add(problem.devices[d].name, static_cast<uint64_t>(bytes[d]));
  }
  std::vector<std::string> transfers;
  for (const Transfer& transfer : placement.transfers) {
    transfers.push_back(TransferJson(problem, transfer));
  }
  return JsonObject()
      .Add("makespan", placement.schedule.makespan)
      .Add("lower_bound", placement.lower_bound)
      .Add("gap", placement.gap())
      .Add("method", MethodName(placement.method))
      .Add("speedup", placement.speedup())
      .Add("serial_seconds", placement.serial_seconds)
      .Add("serial_device", DeviceName(problem, placement.serial_device))
      .AddRaw("serial_fits", placement.serial_fits ? "true" : "false")
      .Add("list_makespan", placement.list_makespan)
      .AddRaw("placement", devices.Text())
      .AddRaw("starts", starts.Text())
      .AddRaw("transfers", absl::StrCat("[", absl::StrJoin(transfers, ","), "]"))
      .AddRaw("memory_bytes", memory.Text())
      .Text();
}

}  // namespace cadre
