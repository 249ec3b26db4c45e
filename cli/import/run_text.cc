// The run file of an imported model: the model as text, one layer a line, and defaults.
#include <google/protobuf/text_format.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cli/import/import.h"

namespace cadre {
namespace {

std::string OneLine(const google::protobuf::Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(message, &text);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// A value of a string field. Paths may contain quotes and backslashes.
std::string TextOf(absl::string_view value) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(value), "\"");
}

}  // namespace

std::string RunFileOf(const ImportedModel& imported, const std::string& name,
                      const std::string& weights_path) {
  const v1::Model& model = imported.model;
  std::string text = absl::StrCat(
      "# Written by 'cadre import'. Adapt `data`, and as needed what "
      "follows it; leave `model` as it is.\n",
      "name: ", TextOf(name), "\n\n");
  if (model.has_tokens()) {
    absl::StrAppend(&text, "# Files of consecutive tokens, which workers read.\n",
                    "data { token_files { train: \"train.bin\" test: \"test.bin\" } }\n");
  } else {
    absl::StrAppend(
        &text,
        "# Folders with one folder of JPEG files per class, which workers read. Set mean and "
        "stddev as in\n# the training of the imported weights.\n",
        "data { image_folder { train: \"train\" test: \"test\" } }\n");
  }
  absl::StrAppend(&text, "batch_per_group: 64\n",
                  "optimizer { sgd { momentum: 0.9 weight_decay: 1e-4 } }\n",
                  "schedule { base_rate: 0.01 cosine {} }\n", "stop { epochs: 10 }\n",
                  "# Groups average their models every so many steps.\n",
                  "averaging { every_steps: 16 }\n", "cluster { groups: 2 ranks_per_group: 1 }\n",
                  "# The imported weights: a path on the machines of workers and aggregators.\n",
                  "checkpoint { from: ", TextOf(weights_path), " }\n\nmodel {\n");
  if (model.has_tokens()) absl::StrAppend(&text, "  tokens { ", OneLine(model.tokens()), " }\n");
  if (model.has_input()) absl::StrAppend(&text, "  input { ", OneLine(model.input()), " }\n");
  for (const v1::Layer& layer : model.layer()) {
    absl::StrAppend(&text, "  layer { ", OneLine(layer), " }\n");
  }
  absl::StrAppend(&text,
                  "\n  # The names and orders of the imported tensors, for 'cadre export'.\n");
  for (const v1::OriginalTensor& original : model.original()) {
    absl::StrAppend(&text, "  original { ", OneLine(original), " }\n");
  }
  absl::StrAppend(&text, "}\n");
  return text;
}

}  // namespace cadre
