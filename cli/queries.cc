// Commands that only read: each makes one call and prints the reply, except watch, which prints
// every update.
#include "absl/time/clock.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/prediction_notes.h"
#include "cli/progress.h"
#include "cli/query_tables.h"
#include "cli/render.h"

namespace cadre {

absl::StatusOr<int> ListRuns(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const v1::ListReply reply, MakeClient(in.global).List());
  if (reply.runs().empty() && !in.global.quiet) in.console.err << "no runs yet" << std::endl;
  Print(RunList{reply}, in.global, in.console);
  return kExitOk;
}

absl::StatusOr<int> ShowStatus(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const v1::StatusReply reply,
                         MakeClient(in.global).Status(in.line.argument()));
  Print(Overview{reply, in.global.coordinator}, in.global, in.console);
  return kExitOk;
}

absl::StatusOr<int> DescribeRun(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const v1::StatusReply reply,
                         MakeClient(in.global).Status(in.line.argument()));
  Print(RunDetails{reply}, in.global, in.console);
  return kExitOk;
}

absl::StatusOr<int> ShowMembers(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, MakeClient(in.global).Status());
  const bool none = reply.workers().empty() && reply.aggregators().empty();
  if (none && !in.global.quiet) in.console.err << "no members yet" << std::endl;
  Print(MemberList{reply}, in.global, in.console);
  return kExitOk;
}

absl::StatusOr<int> WatchRuns(const Invocation& in) {
  const GlobalOptions& options = in.global;
  const Console& console = in.console;
  const CoordinatorClient client = MakeClient(options);
  Progress progress(console.out, {.terminal = console.out_terminal,
                                  .color = console.color && console.out_terminal,
                                  .width = console.width});
  PredictionNotes notes;
  FollowOptions follow;
  follow.run = in.line.argument();
  follow.deadline = DeadlineOf(options, absl::Now());
  bool connected = false;
  follow.on_update = [&](const v1::WatchUpdate& update) {
    connected = true;
    if (options.format == OutputFormat::kJson) {
      console.out << OneLine(ToJson(update)) << std::endl;
    } else {
      progress.Update(update.run(), absl::Now());
      for (const std::string& line : notes.New(update)) progress.Note(line);
    }
    // Following stops when the reader has closed the pipe.
    return console.out.good();
  };
  follow.on_away = [&](const absl::Status& status) {
    if (connected && !options.quiet) {
      console.err << "cadre: " << status.message() << "; retrying" << std::endl;
    }
  };
  const absl::Status status = Follow(client, follow);
  progress.Finish();
  CADRE_RETURN_IF_ERROR(status);
  return kExitOk;
}

}  // namespace cadre
