// Runs a harness on stored inputs: the files of the folders that are given. Each is named before it runs, so
// that the last name is that of an input which ends the program.
#include <chrono>
#include <exception>
#include <filesystem>
#include <iostream>

#include "fuzz/harness.h"
#include "support/temporary_folder.h"

int main(int count, char** arguments) {
    namespace fs = std::filesystem;
    int inputs = 0;
    for (const std::string folder : std::span(arguments, count).subspan(1)) {
        for (const auto& entry : fs::directory_iterator(folder)) {
            std::cout << entry.path().string() << std::endl;
            const std::string input = halfbyte::test::read_file(entry.path());
            const auto start = std::chrono::steady_clock::now();
            LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
            if (std::chrono::steady_clock::now() - start > std::chrono::seconds(10)) {
                std::cout << "took more than 10 seconds" << std::endl;
                return 1;
            }
            ++inputs;
        }
    }
    std::cout << inputs << " inputs" << std::endl;
    return inputs > 0 ? 0 : 1;  // an exception that escapes has ended the program
}
