from legation.cli.main import main

main()
