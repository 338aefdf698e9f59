// Runs a scenario with the connection string of the command line, and prints what it returns as JSON.
exports.report = (main) => {
  main(...process.argv.slice(2)).then(
    (result) => console.log(JSON.stringify(result)),
    (error) => {
      console.error(error);
      process.exitCode = 1;
    },
  );
};
exports.until = async (condition) => {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 20));
};
