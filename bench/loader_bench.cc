// Images per second that the loader of a worker makes of JPEG files: crops of random area, resized
// to the input of the model, mirrored and normalized, by one thread and by more; beside decoding
// alone, which reads whole images at full size with libjpeg-turbo in one thread. One JSON line for
// each number of threads.
//
//   bench_loader --threads 1,2
//   bench_loader --folder imagenet/train --threads 1,2,4,8,16
//
// Without --folder, images are generated: 500 x 375 pixels, quality 90, of noise at all scales,
// which compresses like photographs. `scaling` compares with one thread in the same rounds, and
// `of_decoding` the speed per thread with decoding alone.
#include <gflags/gflags.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>
// jpeglib.h must follow <cstdio>.
#include <jpeglib.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/random.h"
#include "base/status.h"
#include "bench/harness.h"
#include "worker/data/batch_loader.h"
#include "worker/data/batch_rows.h"
#include "worker/data/jpeg.h"
#include "worker/data/open_dataset.h"

DEFINE_string(folder, "", "Folder with one folder of JPEG files for each class.");
DEFINE_string(threads, "1,2", "Numbers of loader threads.");
DEFINE_int32(images, 256, "Images that are generated without --folder.");
DEFINE_int32(size, 224, "Rows and columns of a sample.");
DEFINE_int32(batch, 64, "Samples of a batch.");
DEFINE_int32(rounds, 5, "Rounds, of which the median counts.");

namespace cadre {
namespace {

constexpr ImageSize kGenerated = {.height = 375, .width = 500};
// About that of ImageNet's files: 110 kB on average.
constexpr int kQuality = 90;
// Batches of an iteration: enough that their memory is reused.
constexpr int kBatches = 8;

// Noise at scales from 1 to 128 pixels, with amplitudes that grow with the scale, as in
// photographs.
std::vector<uint8_t> NoisePixels(uint64_t number) {
  std::vector<float> values(kGenerated.height * kGenerated.width * 3, 128.0F);
  for (int64_t scale = 1; scale <= 128; scale *= 2) {
    const float amplitude = 0.05F * std::sqrt(static_cast<float>(scale));
    size_t at = 0;
    for (int64_t y = 0; y < kGenerated.height; ++y) {
      for (int64_t x = 0; x < kGenerated.width; ++x) {
        const int64_t cell = (y / scale) * kGenerated.width + x / scale;
        const uint64_t bits = RandomBits(number, RandomStream::kTest, scale, cell);
        for (int64_t c = 0; c < 3; ++c) {
          // Channels differ less than pixels.
          const int64_t luminance = bits & 0xff;
          const int64_t chroma = (bits >> (8 + 8 * c)) & 0x3f;
          values[at++] += amplitude * static_cast<float>(luminance + chroma - 127 - 31);
        }
      }
    }
  }
  std::vector<uint8_t> pixels;
  for (const float value : values) pixels.push_back(std::clamp(value, 0.0F, 255.0F));
  return pixels;
}

std::string Compress(std::vector<uint8_t> pixels) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_height = kGenerated.height;
  info.image_width = kGenerated.width;
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, kQuality, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    unsigned char* row = pixels.data() + info.next_scanline * kGenerated.width * 3;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const std::string out(reinterpret_cast<const char*>(bytes), size);
  std::free(bytes);
  return out;
}

// Two classes, because a model has at least two.
absl::Status Generate(const std::string& folder) {
  for (int i = 0; i < FLAGS_images; ++i) {
    const std::string of_class = absl::StrCat(folder, "/class-", i % 2);
    std::filesystem::create_directories(of_class);
    CADRE_RETURN_IF_ERROR(
        WriteFileAtomically(absl::StrCat(of_class, "/", i, ".jpg"), Compress(NoisePixels(i))));
  }
  return absl::OkStatus();
}

v1::RunSpec SpecOf(const std::string& folder) {
  v1::RunSpec spec;
  v1::Model& model = *spec.mutable_model();
  model.mutable_input()->set_height(FLAGS_size);
  model.mutable_input()->set_width(FLAGS_size);
  model.mutable_input()->set_channels(3);
  int classes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_directory()) ++classes;
  }
  v1::Layer& head = *model.add_layer();
  head.set_name("fc");
  head.mutable_fully_connected()->set_out_features(classes);
  v1::Layer& loss = *model.add_layer();
  loss.set_name("loss");
  loss.mutable_softmax_cross_entropy();
  v1::ImageFolder& data = *spec.mutable_data()->mutable_image_folder();
  data.set_train(folder);
  data.set_test(folder);
  data.mutable_augmentation()->set_random_resized_crop(true);
  data.mutable_augmentation()->set_flip(true);
  for (const float mean : {0.485F, 0.456F, 0.406F}) data.mutable_augmentation()->add_mean(mean);
  for (const float deviation : {0.229F, 0.224F, 0.225F}) {
    data.mutable_augmentation()->add_stddev(deviation);
  }
  return spec;
}

// Reads and decodes the first images of the folder, as many as a batch has.
absl::StatusOr<TimedRun> DecodeAlone(const std::string& folder, double* bytes) {
  auto files = std::make_shared<std::vector<std::string>>();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    if (std::ssize(*files) == FLAGS_batch) break;
    CADRE_ASSIGN_OR_RETURN(files->emplace_back(), ReadFile(entry.path().string()));
    *bytes += files->back().size();
  }
  if (files->empty()) return absl::NotFoundError(absl::StrCat(folder, ": has no files"));
  *bytes /= files->size();
  return [files](int iterations) -> absl::StatusOr<double> {
    JpegReader reader;
    JpegImage image;
    absl::Status status;
    const double seconds = SecondsOf([&] {
      for (int64_t i = 0; i < int64_t{kBatches} * iterations * FLAGS_batch && status.ok(); ++i) {
        const std::string& file = (*files)[i % files->size()];
        status.Update(reader.Open(std::as_bytes(std::span(file))).status());
        if (status.ok()) status = reader.Decode(3, 8, image);
      }
    });
    if (!status.ok()) return status;
    return seconds;
  };
}

// A new loader for each round, so that no batch is loaded before the time starts.
TimedRun Load(const Dataset& dataset, int threads) {
  return [&dataset, threads](int iterations) -> absl::StatusOr<double> {
    absl::Status status;
    const double seconds = SecondsOf([&] {
      BatchLoader loader(dataset,
                         TrainingRows({.seed = 1,
                                       .dataset_size = dataset.size(),
                                       .batch = FLAGS_batch,
                                       .micro_batches = {{.inputs = {0, FLAGS_batch},
                                                          .labels = {0, FLAGS_batch}}}}),
                         {.threads = threads});
      for (int step = 0; step < kBatches * iterations && status.ok(); ++step) {
        status = loader.Next(step).status();
      }
    });
    if (!status.ok()) return status;
    return seconds;
  };
}

absl::Status Run() {
  CADRE_RETURN_IF_ERROR(RequirePositive({{"images", FLAGS_images},
                                         {"size", FLAGS_size},
                                         {"batch", FLAGS_batch},
                                         {"rounds", FLAGS_rounds}}));
  std::vector<int> threads;
  for (const absl::string_view word : absl::StrSplit(FLAGS_threads, ',')) {
    if (!absl::SimpleAtoi(word, &threads.emplace_back()) || threads.back() < 1) {
      return absl::InvalidArgumentError(absl::StrCat("--threads: '", word, "' is not a number"));
    }
  }
  std::string folder = FLAGS_folder;
  const std::string generated =
      (std::filesystem::temp_directory_path() / absl::StrCat("bench_loader-", getpid())).string();
  const absl::Cleanup remove = [&] { std::filesystem::remove_all(generated); };
  if (folder.empty()) {
    folder = generated;
    CADRE_RETURN_IF_ERROR(Generate(folder));
  }
  double bytes = 0;
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Dataset> dataset,
                         OpenDataset(SpecOf(folder), Split::kTrain));
  CADRE_ASSIGN_OR_RETURN(TimedRun decode, DecodeAlone(folder, &bytes));
  std::vector<TimedRun> variants = {std::move(decode), Load(*dataset, 1)};
  for (const int count : threads) variants.push_back(Load(*dataset, count));
  CADRE_ASSIGN_OR_RETURN(const std::vector<Timing> timings,
                         MeasureInterleaved(variants, {.rounds = FLAGS_rounds, .seconds = 1e6}));
  for (size_t i = 0; i < threads.size(); ++i) {
    const Timing& timing = timings[2 + i];
    nlohmann::ordered_json line = BenchLine("loader");
    line["threads"] = threads[i];
    line["size"] = FLAGS_size;
    line["batch"] = FLAGS_batch;
    line["bytes_per_image"] = Rounded(bytes, 0);
    line["images_per_second"] = Rounded(kBatches * FLAGS_batch / timing.seconds, 1);
    line["scaling"] = Rounded(timings[1].seconds / timing.seconds, 3);
    line["decoding_images_per_second"] = Rounded(kBatches * FLAGS_batch / timings[0].seconds, 1);
    line["of_decoding"] = Rounded(timings[0].seconds / timing.seconds / threads[i], 3);
    PrintLine(line);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  return cadre::BenchMain(argc, argv, __FILE__, "bench_loader [flags]", cadre::Run);
}
